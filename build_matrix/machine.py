"""The facts that a build decides on, gathered once: toolkits, host compilers, devices, wheels that were made before."""

from __future__ import annotations

import platform
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from coli.backends.devices import DeviceFacts, probe_devices, visible_devices
from coli.build_matrix.arch import Card
from coli.build_matrix.choose import has_block_scaling
from coli.build_matrix.compilers import find_compilers, probe_glibc
from coli.build_matrix.decide import Facts
from coli.build_matrix.matrix import Matrix, load_matrix
from coli.build_matrix.request import Request
from coli.build_matrix.toolkits import Places, Toolkit, find_toolkits
from coli.build_matrix.version import Version, parse_version
from coli.build_matrix.wheels import Bundle, deepgemm_headers_in, load_bundles, made_bundle, make_bundle

__all__ = ["decide_toolkit_wheels", "gather_facts", "this_machine"]


def this_machine() -> str:
    """Return x86_64 or aarch64, as the matrix writes them."""
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())


def gather_facts(
    request: Request,
    environment: Mapping[str, str],
    cache: Path,
    *,
    wants_cuda: bool,
    tensor_cores_for: frozenset[Version],
    tell: Callable[[str], None],
) -> Facts:
    """Find what is installed; make the pinned toolkit, and fetch DeepGEMM's headers, when the request needs them.

    ``cache``: coli's cache folder. ``wants_cuda`` False: host compilers only. ``tensor_cores_for``: toolkits of
    the named cells that need cuBLAS headers. Raises ColiError when a download fails.
    """
    machine = this_machine()
    bundles = load_bundles()
    made = {id: root for id, bundle in bundles.items() if (root := made_bundle(bundle, cache, machine)) is not None}
    places = Places(environment, machine, site_folders=_site_folders(), made=made)
    compilers = find_compilers(places, request.nvcc_ccbin.text if request.nvcc_ccbin else None)
    if not wants_cuda:
        return Facts(toolkits=(), compilers=compilers)
    toolkits = find_toolkits(places)
    wanted, options = decide_toolkit_wheels(request, tensor_cores_for, toolkits, bundles, load_matrix())
    if wanted is not None and (wanted.id not in made or options):
        made[wanted.id] = make_bundle(wanted, cache, machine, environment, options, tell=tell)
        places = Places(environment, machine, site_folders=places.site_folders, made=made)
        toolkits = find_toolkits(places)
    devices = probe_devices(environment, places.path_folders())
    pinned = None
    if request.deepgemm is not None and request.deepgemm.text == "1" and request.deepgemm_home is None:
        headers = next(bundle for bundle in bundles.values() if bundle.kind == "deepgemm")
        pinned = deepgemm_headers_in(make_bundle(headers, cache, machine, environment, tell=tell))
    return Facts(
        toolkits=toolkits,
        compilers=compilers,
        cards=_cards(devices, environment),
        driver_cuda=_driver_cuda(devices),
        glibc=probe_glibc(places),
        deepgemm_pinned=pinned,
        deepgemm_home=deepgemm_headers_in(Path(request.deepgemm_home.text)) if request.deepgemm_home else None,
    )


def decide_toolkit_wheels(
    request: Request,
    tensor_cores_for: frozenset[Version],
    toolkits: Sequence[Toolkit],
    bundles: Mapping[str, Bundle],
    matrix: Matrix,
) -> tuple[Bundle | None, tuple[str, ...]]:
    """Return which toolkit is to be there as wheels, made before or not, and with which of its options. Pure.

    The one that is asked for; the pinned one where nothing usable is installed, or where a named cell of its release
    needs cuBLAS headers that no installed toolkit of that release has.
    """
    pinned = next(bundle for bundle in bundles.values() if bundle.kind == "toolkit")
    release = parse_version(pinned.id.removeprefix("pypi:"))
    usable = [one for one in toolkits if one.usable]
    served = {one.version.release for one in usable if one.version and has_block_scaling(one, matrix)}
    wanted = bundles.get(request.toolkit.text) if request.toolkit is not None else None
    named = release in tensor_cores_for
    if request.toolkit is None and (not usable or (named and release not in served)):
        wanted = pinned
    # 421 MB for the sake of headers: only for those who insist on what needs them.
    insists = named or (request.no_tc is not None and request.no_tc.text == "0")
    if wanted is None or not insists:
        return wanted, ()
    return wanted, tuple(wheel.option for wheel in wanted.wheels if wheel.option == "cublas")


def _site_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple(dict.fromkeys(Path(paths[name]) for name in ("purelib", "platlib")))


def _cards(devices: DeviceFacts, environment: Mapping[str, str]) -> tuple[Card, ...]:
    seen = visible_devices(
        environment.get("CUDA_VISIBLE_DEVICES"), devices.gpus, environment.get("CUDA_DEVICE_ORDER")
    ).devices
    return tuple(Card(index, device.name, device.capability.value) for index, device in enumerate(seen))


def _driver_cuda(devices: DeviceFacts) -> Version | None:
    found = devices.driver.max_cuda.value
    return None if found is None else Version(*found)
