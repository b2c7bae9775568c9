"""What a checkpoint is and what is wrong with it: every problem of every file, by the engine's own readers."""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from coli.backends.devices.facts import UNKNOWN, Fact
from coli.backends.files import is_file, is_folder, is_there
from coli.doctor.facts.problem import Part, Problem, Status, of_error, of_notes
from coli.doctor.facts.sizes import pack_sizes
from coli.doctor.facts.values import read_values
from coli.engine.checkpoint import Checkpoint
from coli.engine.contents import Contents, read_contents
from coli.engine.location import find_snapshot
from coli.engine.tokenizer import Tokenizer
from coli.errors import CheckpointError, ColiError
from coli.families.config_facts import ConfigFacts, examine_config
from coli.families.registry import BUILT_IN, Registry, Resolution
from coli.families.roles import Inventory, RoleTable

__all__ = [
    "ChatFacts",
    "CheckpointFacts",
    "DeepFacts",
    "DtypeSum",
    "FamilyFacts",
    "HubState",
    "IndexFacts",
    "MirrorFacts",
    "Part",
    "Problem",
    "Progress",
    "RoleBytes",
    "ShardFacts",
    "Status",
    "TokenizerFacts",
    "probe_checkpoint",
]

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes to do."""


@dataclass(frozen=True)
class FamilyFacts:
    """The family of the config. ``found_by``: model_type or architectures; ``engine``: None for names only."""

    id: str
    name: str
    model_type: str
    found_by: str
    variant: str | None
    revision: str | None
    context: int | None
    engine: str | None
    provider: str
    capabilities: tuple[str, ...]
    why: tuple[str, ...]


@dataclass(frozen=True)
class ShardFacts:
    """One weight file that the model consists of. ``state``: `ok`, or the kind of its first problem.

    ``path`` is what is read, behind links; ``file_bytes`` None when the file is not there; ``tensors`` and
    ``data_bytes`` are None when its header cannot be read.
    """

    name: str
    state: str
    path: Path | None
    file_bytes: int | None
    header_bytes: int | None
    tensors: int | None
    data_bytes: int | None


@dataclass(frozen=True)
class IndexFacts:
    """model.safetensors.index.json: files and tensors that it names, and the bytes that it claims."""

    files: int
    tensors: int
    claimed_bytes: int | None


@dataclass(frozen=True)
class DtypeSum:
    """Tensors and bytes of one dtype."""

    dtype: str
    tensors: int
    nbytes: int


@dataclass(frozen=True)
class RoleBytes:
    """Tensors and bytes of one role (``scale_bytes`` of them scales); ``dtypes`` of its weights."""

    kind: str
    tensors: int
    nbytes: int
    scale_bytes: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class TokenizerFacts:
    """tokenizer.json that parses. ``vocabulary``: one more than the highest id."""

    path: Path
    vocabulary: int


@dataclass(frozen=True)
class ChatFacts:
    """The chat format: ``module`` of the family that renders it, and the ``revision`` of the release."""

    module: str
    revision: str | None


@dataclass(frozen=True)
class HubState:
    """A repository in a Hugging Face cache. ``incomplete``: unfinished downloads, by file name and bytes present."""

    repository: str
    revision: str
    snapshots: tuple[str, ...]
    incomplete: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class MirrorFacts:
    """A copy of the weight files on another disk: the names that are ``same`` in size, ``missing``, ``different``."""

    path: Path
    same: tuple[str, ...]
    missing: tuple[str, ...]
    different: tuple[str, ...]


@dataclass(frozen=True)
class DeepFacts:
    """How far the data was read: bytes read of all bytes, and the quantized tensors whose codes were looked at."""

    read_bytes: int
    data_bytes: int
    checked_tensors: int


@dataclass(frozen=True)
class CheckpointFacts:
    """A checkpoint, as far as it could be read. ``problems`` in the order of reading, all of them.

    ``given`` is the path that was asked for, ``folder`` the one that holds config.json. ``weight_bytes``: all tensors
    of the files that are used. ``text_config``: the part of the config that sizes the text model. ``tensor_bytes``:
    of each tensor, by the engine's own names, as `pack_sizes` writes them. ``ignored``: weight files that belong to no
    model. ``unused``: parts that a text engine does not use (vision ...) and code that is never run.
    """

    given: Path
    folder: Fact[Path] = UNKNOWN
    hub: Fact[HubState] = UNKNOWN
    config: Fact[ConfigFacts] = UNKNOWN
    family: Fact[FamilyFacts] = UNKNOWN
    index: Fact[IndexFacts] = UNKNOWN
    shards: tuple[ShardFacts, ...] = ()
    weight_bytes: Fact[int] = UNKNOWN
    text_config: Fact[Mapping[str, Any]] = UNKNOWN
    tensor_bytes: Fact[Mapping[str, int]] = UNKNOWN
    dtypes: tuple[DtypeSum, ...] = ()
    roles: Fact[tuple[RoleBytes, ...]] = UNKNOWN
    layers: Fact[int] = UNKNOWN
    experts_per_layer: Fact[int] = UNKNOWN
    expert_bytes: Fact[int] = UNKNOWN
    embedding_bytes: Fact[int] = UNKNOWN
    tokenizer: Fact[TokenizerFacts] = UNKNOWN
    chat: Fact[ChatFacts] = UNKNOWN
    generation_config: Fact[Mapping[str, Any]] = UNKNOWN
    ignored: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    mirrors: tuple[MirrorFacts, ...] = ()
    deep: Fact[DeepFacts] = UNKNOWN
    problems: tuple[Problem, ...] = ()

    @property
    def status(self) -> Status:
        """Return the worst status of the problems."""
        order: tuple[Status, ...] = ("ok", "note", "warn", "fail")
        return max((problem.status for problem in self.problems), key=order.index, default="ok")


def probe_checkpoint(
    path: Path,
    *,
    plugins: tuple[str, ...] | None = None,
    registry: Registry | None = None,
    mirrors: Sequence[Path] = (),
    deep: bool = False,
    progress: Progress | None = None,
) -> CheckpointFacts:
    """Examine a model folder, a Hugging Face cache or a part of one; reads headers and texts, never raises.

    ``plugins``: the allow list of `Registry.load`; ``registry``: used instead. ``mirrors``: folders with copies of the
    files. ``deep``: read all weights through, reporting to ``progress``.
    """
    found = _Found(path)
    found.guard("location", lambda: _locate(found))
    if found.folder is None:
        return found.facts()
    contents = found.guard("weights", partial(read_contents, found.folder))
    if contents is None:
        return found.facts()
    found.guard("weights", lambda: _files(found, contents))
    found.guard("config", lambda: _config(found, contents))
    resolution = found.guard("family", lambda: _family(found, contents, registry or Registry.load(plugins)))
    found.guard("roles", lambda: _roles(found, contents, resolution))
    found.guard("tokenizer", lambda: _tokenizer(found, contents.folder))
    found.guard("chat", lambda: _chat(found, contents, resolution))
    for mirror in mirrors:
        found.guard("mirror", partial(_mirror, found, mirror))
    if deep:
        found.guard("values", lambda: _values(found, contents, progress))
    return found.facts()


class _Found:
    """Collects the fields of the facts while the parts are read, one after another."""

    def __init__(self, given: Path) -> None:
        self.given = given
        self.folder: Path | None = None
        self.fields: dict[str, Any] = {}
        self.problems: list[Problem] = []
        self.unused: list[str] = []

    def facts(self) -> CheckpointFacts:
        return CheckpointFacts(self.given, **self.fields, unused=tuple(self.unused), problems=tuple(self.problems))

    def guard(self, part: Part, read: Callable[[], T]) -> T | None:
        """Read one part; what it raises is a problem, and the other parts are read all the same."""
        try:
            return read()
        except ColiError as error:
            self.problems.append(of_error(error, part))
        except OSError as error:
            text = error.strerror or type(error).__name__
            where = str(error.filename or self.given)
            self.problems.append(Problem("checkpoint.unreadable", "fail", part, where, "it cannot be read", text))
        except Exception as error:  # a fault of this program: it must not hide what the other parts say
            text = f"{type(error).__name__}: {error}"[:300]
            self.problems.append(
                Problem(
                    "checkpoint.not-examined", "fail", part, str(self.given), "this part could not be examined", text
                )
            )
        return None

    def note(self, code: str, part: Part, subject: str, summary: str, status: Status = "note", **more: Any) -> None:
        self.problems.append(Problem(f"checkpoint.{code}", status, part, subject, summary, **more))


def _locate(found: _Found) -> None:
    try:
        found.folder = find_snapshot(found.given)
    except CheckpointError as error:
        found.problems.append(of_error(error, "location"))
        if error.code != "checkpoint.no-config":
            return
        # Weights without a config can be looked at all the same, in the folder that was given or its snapshot.
        folder = Path(error.subject)
        found.folder = folder if is_folder(folder) else found.given
    found.fields["folder"] = Fact.of(found.folder, str(found.given))
    repository = found.folder.parent.parent
    if found.folder.parent.name != "snapshots" or not repository.name.startswith("models--"):
        found.fields["hub"] = Fact.absent("not in a Hugging Face cache")
        return
    blobs = repository / "blobs"
    parts = sorted(blobs.glob("*.incomplete")) if is_folder(blobs) else []
    hub = HubState(
        repository=repository.name.removeprefix("models--").replace("--", "/", 1),
        revision=found.folder.name,
        snapshots=tuple(sorted(entry.name for entry in found.folder.parent.iterdir() if is_folder(entry))),
        incomplete=tuple((part.name, part.stat().st_size) for part in parts),
    )
    found.fields["hub"] = Fact.of(hub, str(repository))


def _files(found: _Found, contents: Contents) -> None:
    told = [error for error in contents.problems if not (error.code == "checkpoint.no-config" and found.problems)]
    problems = [of_error(error) for error in told]
    found.problems += problems
    found.problems += of_notes(contents.notes)
    found.fields["ignored"] = tuple(contents.ignored)
    states: dict[str | None, str] = {}
    for problem in problems:
        for name in (problem.data.get("file"), *problem.data.get("missing", ())):
            states.setdefault(name, problem.kind)
    found.fields["shards"] = tuple(_shard(contents, name, states.get(name, "ok")) for name in contents.names)
    if contents.index is not None:
        claimed = (contents.index.metadata or {}).get("total_size")
        index = IndexFacts(
            files=len(set(contents.index.weight_map.values())),
            tensors=len(contents.index.weight_map),
            claimed_bytes=claimed if isinstance(claimed, int) and not isinstance(claimed, bool) else None,
        )
        found.fields["index"] = Fact.of(index, "model.safetensors.index.json")
    elif not any(Path(problem.subject).name == "model.safetensors.index.json" for problem in problems):
        found.fields["index"] = Fact.absent("one file needs no index")
    if contents.headers:
        total = sum(info.nbytes for info in contents.tensors.values())
        source = f"headers of {len(contents.headers)} of {len(contents.names)} files"
        # Of a model that is not whole, the sum of what is there says nothing about the model.
        whole = len(contents.headers) == len(contents.names)
        found.fields["weight_bytes"] = Fact.of(total, source) if whole else Fact.unknown(source)
        counts = Counter(info.dtype for info in contents.tensors.values())
        sizes: Counter[str] = Counter()
        for info in contents.tensors.values():
            sizes[info.dtype] += info.nbytes
        found.fields["dtypes"] = tuple(DtypeSum(name, counts[name], sizes[name]) for name in sorted(counts))


def _shard(contents: Contents, name: str, state: str) -> ShardFacts:
    header = contents.headers.get(name)
    if header is None:
        path = contents.folder / name
        there = is_file(path)
        size = path.stat().st_size if there else None
        return ShardFacts(name, state, path if there else None, size, None, None, None)
    data = sum(info.nbytes for info in header.tensors.values())
    return ShardFacts(name, state, header.path, header.file_bytes, header.header_bytes, len(header.tensors), data)


def _config(found: _Found, contents: Contents) -> None:
    if contents.generation_config is not None:
        found.fields["generation_config"] = Fact.of(contents.generation_config, "generation_config.json")
    elif not is_there(contents.folder / "generation_config.json"):
        found.fields["generation_config"] = Fact.absent("no generation_config.json")
    code = sorted(entry.name for entry in contents.folder.iterdir() if entry.name.endswith(".py"))
    if contents.config is not None:
        facts, problems = examine_config(contents.config, str(contents.folder / "config.json"))
        found.problems += [of_error(error, "config") for error in problems]
        found.fields["config"] = Fact.of(facts, "config.json")
        for part in facts.other_parts:
            found.unused.append(part)
        if facts.other_parts:
            listed = ", ".join(facts.other_parts)
            found.note("unused-part", "config", "config.json", f"{listed}: not used, only the text model runs")
        code = sorted({*code, *facts.remote_code})
    if code:
        found.unused += code
        listed = ", ".join(code[:10])
        found.note("remote-code", "config", "config.json", f"the checkpoint carries code, which is never run: {listed}")


def _family(found: _Found, contents: Contents, registry: Registry) -> Resolution | None:
    if contents.config is None:
        return None
    subject = str(contents.folder / "config.json")
    resolution = registry.resolve(contents.config, subject)
    descriptor = resolution.descriptor
    facts = FamilyFacts(
        id=descriptor.id,
        name=resolution.name,
        model_type=resolution.model_type,
        found_by=resolution.found_by,
        variant=resolution.variant.id if resolution.variant else None,
        revision=resolution.revision,
        context=resolution.context,
        engine=descriptor.engine,
        provider=resolution.family.provider.text(),
        capabilities=descriptor.capabilities,
        why=resolution.why,
    )
    found.fields["family"] = Fact.of(facts, "config.json")
    found.fields["text_config"] = Fact.of(dict(resolution.text), "config.json")
    found.guard("family", lambda: resolution.require_engine(subject))
    return resolution


# Names of the two tables of a vocabulary where a family has no roles to tell them by.
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight", "embed.weight")
_HEADS = (
    "lm_head.weight",
    "head.weight",
    "output.weight",
    "output_layer.weight",
    "embed_out.weight",
    "lm_head.linear.weight",
    "unembed.weight",
)


def _roles(found: _Found, contents: Contents, resolution: Resolution | None) -> None:
    if not contents.headers or contents.config is None:
        return
    tensors: Mapping[str, Any] = contents.tensors
    inventory: Inventory | None = None
    if resolution is not None and resolution.descriptor.roles:
        table = RoleTable(resolution.descriptor)
        inventory = table.inventory(tensors)
        found.guard("roles", lambda: inventory.require_known(str(contents.folder)))
        _inventory(found, contents, inventory)
        with Checkpoint(contents.folder, contents.config, None, contents.tensors, (), ()) as checkpoint:
            # The engine gives the tensors their own names, and refuses two spellings of one.
            if found.guard("roles", partial(_rename, checkpoint, table)):
                _sizes(found, contents, checkpoint)
                _shapes(found, resolution, checkpoint)
        tensors = {table.canonical(name): info for name, info in tensors.items()}
    config = found.fields["config"].value
    tables = [sum(t.nbytes for n, t in tensors.items() if n.endswith(ends)) for ends in (_EMBEDDINGS, _HEADS)]
    if inventory is not None:
        kinds = inventory.kinds
        tables = [kinds[kind].nbytes if kind in kinds else 0 for kind in ("embedding", "head")]
    embedding, head = tables
    if config.tied and embedding and head:
        found.unused.append("output head")
        text = f"the embedding is tied, and the files hold an output head of {head} bytes too: it is not counted"
        found.note("tied-head", "roles", "config.json", text)
    whole = len(contents.headers) == len(contents.names)
    if embedding and whole and not head and config.tied is False and not _fails(found):
        status: Status = "fail" if resolution is not None else "warn"  # another family may call it anything
        text = "embedding and output head are not tied, and the files hold no output head"
        found.note("missing-head", "roles", "config.json", text, status)
    if embedding and whole:
        counted = embedding if config.tied else embedding + head
        found.fields["embedding_bytes"] = Fact.of(counted, "tied" if config.tied else "embedding and output head")


def _fails(found: _Found) -> bool:
    return any(problem.part in ("weights", "roles") and problem.status == "fail" for problem in found.problems)


def _rename(checkpoint: Checkpoint, table: RoleTable) -> bool:
    checkpoint.rename(table.canonical)
    return True


def _sizes(found: _Found, contents: Contents, checkpoint: Checkpoint) -> None:
    source = f"headers of {len(contents.headers)} of {len(contents.names)} files"
    packed = pack_sizes({name: info.nbytes for name, info in checkpoint.tensors.items()})
    if packed is None:
        source = "names with brackets"
    whole = packed is not None and len(contents.headers) == len(contents.names)
    found.fields["tensor_bytes"] = Fact.of(packed, source) if whole else Fact.unknown(source)


def _shapes(found: _Found, resolution: Resolution, checkpoint: Checkpoint) -> None:
    """Ask the family what its engine would refuse. Not a plugin: its code is never run in this process."""
    engine = resolution.descriptor.engine
    if engine is None or _fails(found) or resolution.family.provider != BUILT_IN:
        return  # what is missing from a broken file is a consequence
    module = f"{_package(engine)}.check"
    if not _module_exists(module):
        return
    try:
        examine = importlib.import_module(module).examine
    except ImportError as error:
        found.note(
            "not-checked",
            "roles",
            "config.json",
            "shapes were not checked: the installation is broken",
            evidence=str(error),
        )
        return
    errors: list[CheckpointError] = examine(dict(resolution.text), checkpoint)
    found.problems += [
        of_error(error, "config" if error.subject.endswith("config.json") else "roles") for error in errors
    ]


def _inventory(found: _Found, contents: Contents, inventory: Inventory) -> None:
    sums = tuple(RoleBytes(kind, *values) for kind, values in inventory.kinds.items())
    found.fields["roles"] = Fact.of(sums, f"names of {len(contents.tensors)} tensors")
    counts, sizes = set(inventory.experts.values()), set(inventory.expert_bytes.values())
    found.fields["layers"] = Fact.of(inventory.layers, "tensor names")
    if len(counts) == 1:
        found.fields["experts_per_layer"] = Fact.of(counts.pop(), "tensor names")
    if len(sizes) == 1 and (size := sizes.pop()) is not None:
        found.fields["expert_bytes"] = Fact.of(size, "tensors of one expert with its scales")
    if any(problem.part == "weights" and problem.status == "fail" for problem in found.problems):
        return  # what is missing then is a consequence
    config: ConfigFacts = found.fields["config"].value
    if config.layers is not None and inventory.layers != config.layers:
        _disagree(found, "layers", f"{inventory.layers} layers", f"num_hidden_layers {config.layers}")
    fewer = {layer: count for layer, count in inventory.experts.items() if config.experts not in (None, count)}
    if fewer:
        layer, count = next(iter(fewer.items()))
        text = f"{count} experts in layer {layer}" + (f" and {len(fewer) - 1} more layers" if len(fewer) > 1 else "")
        _disagree(found, "experts", text, f"{config.experts} experts a layer")


def _disagree(found: _Found, what: str, seen: str, said: str) -> None:
    found.note(
        f"missing-{what}",
        "roles",
        "config.json",
        f"the weight files do not hold the {what} that config.json speaks of",
        "fail",
        evidence=f"the files have {seen}, config.json says {said}",
        fix="config.json and weight files are of different models: download both again",
    )


def _tokenizer(found: _Found, folder: Path) -> None:
    tokenizer = Tokenizer.open(folder)
    found.fields["tokenizer"] = Fact.of(TokenizerFacts(tokenizer.path, tokenizer.vocabulary), "tokenizer.json")
    config = found.fields.get("config", UNKNOWN).value
    if config is None or config.vocab is None:
        return
    ids, rows = tokenizer.vocabulary, config.vocab
    if ids > rows:
        _vocabulary(found, "fail", "the tokenizer has ids that the model has no rows for", f"{ids} ids, {rows} rows")
    elif ids < rows // 2:
        _vocabulary(found, "warn", "the tokenizer has ids for less than half of the rows", f"{ids} ids, {rows} rows")


def _vocabulary(found: _Found, status: Status, summary: str, seen: str) -> None:
    fix = "take tokenizer.json and config.json of the same release"
    found.note("vocabulary", "tokenizer", "tokenizer.json", summary, status, evidence=seen, fix=fix)


def _chat(found: _Found, contents: Contents, resolution: Resolution | None) -> None:
    if resolution is None or resolution.descriptor.engine is None:
        return
    module = f"{_package(resolution.descriptor.engine)}.chat"
    if _module_exists(module):
        found.fields["chat"] = Fact.of(ChatFacts(module, resolution.revision), f"family {resolution.descriptor.id}")
    else:
        found.fields["chat"] = Fact.absent(f"{module} is not there")


def _package(engine: str) -> str:
    return engine.partition(":")[0].rpartition(".")[0]


def _module_exists(name: str) -> bool:
    """Look for a module by its files: asking the import system would run the packages above it."""
    top, *inner = name.split(".")
    spec = importlib.util.find_spec(top)
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    below = Path(*inner)
    return any(is_file((folder / below).with_suffix(".py")) or is_folder(folder / below) for folder in folders)


def _mirror(found: _Found, folder: Path) -> None:
    same: list[str] = []
    missing: list[str] = []
    different: list[str] = []
    for shard in found.fields.get("shards", ()):
        copy = folder / shard.name
        if not is_file(copy):
            missing.append(shard.name)
        else:
            (same if copy.stat().st_size == shard.file_bytes else different).append(shard.name)
    mirror = MirrorFacts(folder, tuple(same), tuple(missing), tuple(different))
    found.fields["mirrors"] = (*found.fields.get("mirrors", ()), mirror)
    if missing or different:
        found.note(
            "mirror",
            "mirror",
            str(folder),
            f"{len(missing)} of {len(same) + len(missing) + len(different)} files of the mirror are missing, "
            f"{len(different)} have another size",
            "warn",
            evidence=", ".join([*different, *missing][:10]),
            fix=f"copy them again, for example with `cp {found.folder}/*.safetensors {folder}/`",
        )


def _values(found: _Found, contents: Contents, progress: Progress | None) -> None:
    values = read_values(list(contents.headers.values()), progress)
    found.problems += values.problems
    facts = DeepFacts(values.read_bytes, values.data_bytes, values.checked_tensors)
    found.fields["deep"] = Fact.of(facts, f"{len(contents.headers)} files")
