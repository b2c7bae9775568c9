"""The facts that a build decides on, gathered once: toolkits, host compilers, devices, wheels that were made before."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coli.backends.devices import DeviceFacts, probe_devices, visible_devices
from coli.backends.toolkit_places import site_folders
from coli.build_matrix.arch import Card
from coli.build_matrix.choose import has_block_scaling
from coli.build_matrix.compilers import find_compilers, probe_glibc
from coli.build_matrix.decide import Facts, wants_deepgemm
from coli.build_matrix.deepgemm import DeepGemm, probe_deepgemm
from coli.build_matrix.matrix import Matrix, load_matrix
from coli.build_matrix.request import Request
from coli.build_matrix.toolkits import Places, Toolkit, find_toolkits
from coli.build_matrix.version import Version, parse_version
from coli.build_matrix.wheels import Bundle, Download, load_bundles, made_bundle, make_bundle
from coli.errors import ColiError
from coli.paths import user_path

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
    names_deepgemm: bool,
    tensor_cores_for: frozenset[Version],
    tell: Callable[[str], None],
    fetch: bool = True,
) -> Facts:
    """Find what is installed; make the pinned toolkit, and fetch DeepGEMM's headers, when the request needs them.

    ``fetch`` False: nothing is downloaded, and the facts say what would be.

    ``cache``: coli's cache folder. ``wants_cuda`` False: host compilers only. Of the named cells: ``names_deepgemm``,
    whether one needs DeepGEMM's headers, and ``tensor_cores_for``, toolkits that need cuBLAS headers. Raises ColiError
    when a download fails.
    """
    machine = this_machine()
    bundles = load_bundles()
    made = {id: root for id, bundle in bundles.items() if (root := made_bundle(bundle, cache, machine)) is not None}
    places = Places(environment, machine, site_folders=site_folders(), made=made, asked=_asked_folder(request))
    compilers = find_compilers(places, request.nvcc_ccbin.text if request.nvcc_ccbin else None)
    if not wants_cuda:
        return Facts(toolkits=(), compilers=compilers)
    toolkits = find_toolkits(places)
    wanted, options = decide_toolkit_wheels(request, tensor_cores_for, toolkits, bundles, load_matrix())
    not_fetched: list[Download] = []
    if wanted is not None and not fetch:
        root = made_bundle(wanted, cache, machine, options)
        if root is None:
            not_fetched.append(wanted.download(options))
        else:
            places = replace(places, made={**made, wanted.id: root})
            toolkits = find_toolkits(places)
    elif wanted is not None and (wanted.id not in made or options):
        made[wanted.id] = make_bundle(wanted, cache, machine, environment, options, tell=tell)
        places = replace(places, made=made)
        toolkits = find_toolkits(places)
    devices = probe_devices(environment, places.path_folders())
    cards = _cards(devices, environment)
    home = probe_deepgemm(user_path(request.deepgemm_home.text).absolute()) if request.deepgemm_home else None
    pinned: DeepGemm | None = None
    wants_headers = request.deepgemm_home is None and (
        names_deepgemm or wants_deepgemm(request, cards, load_matrix()) is not None
    )
    if wants_headers and not fetch:
        headers = made_bundle(bundles["deepgemm"], cache, machine)
        if headers is None:
            not_fetched.append(bundles["deepgemm"].download())
        else:
            pinned = probe_deepgemm(headers)
    elif wants_headers:
        try:
            pinned = probe_deepgemm(make_bundle(bundles["deepgemm"], cache, machine, environment, tell=tell))
        except ColiError as error:
            if names_deepgemm or request.deepgemm is not None:
                raise
            tell(f"DeepGEMM's headers could not be fetched: {error.text()}")  # nobody asked: the rest is built
    return Facts(
        toolkits=toolkits,
        compilers=compilers,
        cards=cards,
        driver_cuda=_driver_cuda(devices),
        glibc=probe_glibc(places),
        deepgemm_pinned=pinned,
        deepgemm_home=home,
        not_fetched=tuple(not_fetched),
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


def _asked_folder(request: Request) -> Path | None:
    """Return the folder that --toolkit names, None for a version or a toolkit from wheels."""
    text = request.toolkit.text if request.toolkit is not None else ""
    if not text or text.startswith("pypi:") or parse_version(text) is not None:
        return None
    return user_path(text).absolute()


def _cards(devices: DeviceFacts, environment: Mapping[str, str]) -> tuple[Card, ...]:
    seen = visible_devices(
        environment.get("CUDA_VISIBLE_DEVICES"), devices.gpus, environment.get("CUDA_DEVICE_ORDER")
    ).devices
    return tuple(Card(index, device.name, device.capability.value) for index, device in enumerate(seen))


def _driver_cuda(devices: DeviceFacts) -> Version | None:
    found = devices.driver.max_cuda.value
    return None if found is None else Version(*found)
