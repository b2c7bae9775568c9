"""What a family says about itself: `family.toml` as a frozen structure, validated with every problem at once."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from coli.errors import FamilyError
from coli.families.patterns import EXPERT, LAYER, Pattern, expand, overlap

if TYPE_CHECKING or sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "API_VERSION",
    "CAPABILITIES",
    "EXPERT_PARTS",
    "ROLE_KINDS",
    "Context",
    "Descriptor",
    "Rename",
    "RolePattern",
    "Variant",
    "parse_descriptor",
]

API_VERSION = "1.0"
"""Version of the contract between coli and a family: this file, the tensor roles, the engine protocol."""

ROLE_KINDS = ("embedding", "head", "norm", "dense", "expert", "router", "hyper", "draft", "ignored")
EXPERT_PARTS = ("w1", "w2", "w3")
CAPABILITIES = ("tools", "thinking", "grammar", "vision", "ram_budget", "cuda")

# A descriptor is text that a stranger may have written: bounded before it is parsed.
MAX_BYTES = 256 * 1024
MAX_PATTERNS = 8192
MAX_PROBLEMS = 50

_ID = re.compile(r"^[a-z][a-z0-9_]{0,63}$")
_MODEL_TYPE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}$")
_CLASS = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")
_KEY = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,63}(\.[A-Za-z_][A-Za-z0-9_]{0,63}){0,3}$")
_ENGINE = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")
_CAPABILITY = re.compile(r"^[1-9][0-9]?\.[0-9]$")

Scalar = str | int | float | bool


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Context limits in tokens: `maximum` of the family, `key` the config field that may lower it. None: not known."""

    maximum: int | None = None
    key: str | None = None


class Variant(msgspec.Struct, frozen=True):
    """A named geometry: it applies when every field of `match` is equal, `present` are there and `absent` are not."""

    id: str
    name: str
    match: dict[str, Scalar] = {}
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    revision: str | None = None

    def applies(self, text: Mapping[str, Any]) -> bool:
        """Tell whether a text config has this geometry."""
        same = all(key in text and _equal(text[key], value) for key, value in self.match.items())
        return same and all(k in text for k in self.present) and not any(k in text for k in self.absent)


class RolePattern(msgspec.Struct, frozen=True):
    """Names of tensors with one role: `names` are weights, `scales` their scales."""

    kind: str
    names: tuple[str, ...]
    scales: tuple[str, ...] = ()
    part: str | None = None


class Rename(msgspec.Struct, frozen=True):
    """Another name that writers of checkpoints use for a tensor, with the same holes in the same order."""

    old: str
    new: str


class Descriptor(msgspec.Struct, frozen=True, kw_only=True):
    """A family. Without an `engine` it has names and types only. `origin` says where it was read."""

    id: str
    api: str
    name: str
    origin: str
    model_types: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    text_config: str | None = None
    engine: str | None = None
    stages: tuple[str, ...] = ()
    minimum_compute_capability: str | None = None
    context: Context = Context()
    capabilities: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()
    prefix: str = ""
    renames: tuple[Rename, ...] = ()
    roles: tuple[RolePattern, ...] = ()

    def types(self) -> tuple[str, ...]:
        """Return the model types with the legacy ones last."""
        return self.model_types + self.aliases


def parse_descriptor(toml_text: str, origin: str) -> Descriptor:
    """Read a `family.toml`. Raises one FamilyError that lists every problem as `key: found, expected`."""
    if len(toml_text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise _refused(origin, [f"the file is larger than {MAX_BYTES} bytes"])
    try:
        data = tomllib.loads(toml_text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise _refused(origin, [f"not TOML: {error}"]) from None
    reader = _Reader(data)
    fields = {key: read(reader, key) for key, read in _FIELDS.items()}
    reader.unknown_keys(data, _FIELDS, "")
    reader.cross_checks(fields)
    if reader.problems:
        raise _refused(origin, reader.problems)
    return Descriptor(origin=origin, **{k: v for k, v in fields.items() if v is not None})


def _refused(origin: str, problems: list[str]) -> FamilyError:
    shown = problems[:MAX_PROBLEMS]
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown)} more")
    return FamilyError(
        origin,
        "a family descriptor must be valid",
        observed="\n            ".join(shown),
        fix="correct every line above; docs/families.md has the keys",
        code="family.descriptor",
    )


def _equal(found: Any, expected: Scalar) -> bool:
    # True == 1 in Python, but not in a config.
    return isinstance(found, bool) == isinstance(expected, bool) and bool(found == expected)


class _Reader:
    """Reads fields of one TOML document and collects what is wrong with them."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.problems: list[str] = []

    def problem(self, key: str, found: object, expected: str) -> None:
        text = repr(found)
        self.problems.append(f"{key}: {text if len(text) <= 80 else text[:77] + '...'} is not {expected}")

    def unknown_keys(self, table: Mapping[str, Any], known: Mapping[str, object] | tuple[str, ...], where: str) -> None:
        for key in table:
            if key not in known:
                self.problems.append(f"{where}{key}: unknown key, expected one of {', '.join(known)}")

    def text(self, key: str, rule: re.Pattern[str], expected: str, *, required: bool = False) -> str | None:
        if key not in self.data:
            if required:
                self.problems.append(f"{key}: missing, expected {expected}")
            return None
        value = self.data[key]
        if not isinstance(value, str) or not rule.match(value):
            self.problem(key, value, expected)
            return None
        return value

    def texts(
        self, table: Mapping[str, Any], key: str, where: str, rule: re.Pattern[str], expected: str, *, least: int = 0
    ) -> tuple[str, ...] | None:
        if key not in table:
            if least:
                self.problems.append(f"{where}{key}: missing, expected a list of {expected}")
            return None
        value = table[key]
        if not isinstance(value, list) or len(value) < least:
            self.problem(where + key, value, f"a list of {expected}" + (f" with at least {least}" if least else ""))
            return None
        good: list[str] = []
        for index, item in enumerate(value):
            if not isinstance(item, str) or not rule.match(item):
                self.problem(f"{where}{key}[{index}]", item, expected)
            elif item in good:
                self.problems.append(f"{where}{key}[{index}]: {item!r} is there twice")
            else:
                good.append(item)
        return tuple(good)

    def tables(self, key: str) -> list[tuple[str, dict[str, Any]]]:
        value = self.data.get(key, [])
        if not isinstance(value, list):
            self.problem(key, value, "an array of tables")
            return []
        found = []
        for index, item in enumerate(value):
            if isinstance(item, dict):
                found.append((f"{key}[{index}].", item))
            else:
                self.problem(f"{key}[{index}]", item, "a table")
        return found

    def cross_checks(self, fields: dict[str, Any]) -> None:
        types = fields["model_types"] or ()
        for alias in fields["aliases"] or ():
            if alias in types:
                self.problems.append(f"aliases: {alias!r} is also in model_types")
        if fields["engine"] is None:
            for key in ("stages", "roles", "renames", "prefix", "minimum_compute_capability"):
                if self.data.get(key):
                    self.problems.append(f"{key}: only with an engine; without one a family has names and types")
        elif not self.data.get("roles"):
            self.problems.append("roles: missing, a family with an engine says the role of every tensor")
        ids = [v.id for v in fields["variants"] or ()]
        for repeated in sorted({i for i in ids if ids.count(i) > 1}):
            self.problems.append(f"variants: id {repeated!r} is there twice")
        self._patterns(fields["roles"] or (), fields["renames"] or ())

    def _patterns(self, roles: tuple[RolePattern, ...], renames: tuple[Rename, ...]) -> None:
        patterns: list[Pattern] = []
        for index, role in enumerate(roles):
            own: list[Pattern] = []
            for key, names in (("names", role.names), ("scales", role.scales)):
                for name in names:
                    own += self._expand(f"roles[{index}].{key}", name)
            if role.kind == "expert":
                self._expert(f"roles[{index}]", role, own)
            patterns += own
        for index, rename in enumerate(renames):
            where = f"renames[{index}]"
            old, new = self._expand(f"{where}.old", rename.old), self._expand(f"{where}.new", rename.new)
            patterns += old
            if len(old) != len(new) or any(_holes(o) != _holes(n) for o, n in zip(old, new, strict=False)):
                self.problems.append(f"renames[{index}]: {rename.old!r} and {rename.new!r} differ in holes or choices")
            if any(p.wild for p in old + new):
                self.problems.append(f"renames[{index}]: * and ** cannot be renamed")
        if len(patterns) > MAX_PATTERNS:
            self.problems.append(f"roles: {len(patterns)} patterns after expansion, expected at most {MAX_PATTERNS}")
            return
        for first, second in _overlaps(patterns):
            what = "is there twice" if first == second else f"and {second!r} fit the same name"
            self.problems.append(f"roles: {first!r} {what}; a tensor has one role")

    def _expand(self, where: str, text: str) -> list[Pattern]:
        try:
            return expand(text)
        except ValueError as error:
            self.problems.append(f"{where}: {text!r}: {error}")
            return []

    def _expert(self, where: str, role: RolePattern, patterns: list[Pattern]) -> None:
        for pattern in patterns:
            if pattern.hole(LAYER) is None or pattern.hole(EXPERT) is None or pattern.wild:
                self.problems.append(f"{where}: {pattern.source!r} needs {LAYER} and {EXPERT} and no *")
            elif (role.part or pattern.part) not in EXPERT_PARTS:
                self.problems.append(
                    f"{where}: part {role.part or pattern.part!r} of {pattern.source!r} is not one of "
                    f"{', '.join(EXPERT_PARTS)}; give part = ..."
                )


def _holes(pattern: Pattern) -> list[str]:
    return [s for s in pattern.segments if s in (LAYER, EXPERT)]


def _overlaps(patterns: list[Pattern]) -> list[tuple[str, str]]:
    """Return pairs of sources that meet. Closed patterns meet by key; open ones are compared with all."""
    pairs: dict[tuple[str, str], None] = {}
    keys: dict[str, Pattern] = {}
    wild = [p for p in patterns if p.wild]
    for pattern in patterns:
        if not pattern.wild:
            other = keys.setdefault(pattern.key, pattern)
            if other is not pattern:
                pairs[other.source, pattern.source] = None
    for index, pattern in enumerate(wild):
        for other in [*wild[index + 1 :], *keys.values()]:
            if overlap(pattern, other):
                pairs[pattern.source, other.source] = None
    return list(pairs)


# ---- fields ---------------------------------------------------------------------------------------------------------


def _api(r: _Reader, key: str) -> str | None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    value = r.text(key, re.compile(r"^.{1,64}$"), "a version range such as '>=1,<2'", required=True)
    if value is None:
        return None
    try:
        SpecifierSet(value)
    except InvalidSpecifier:
        r.problem(key, value, "a version range such as '>=1,<2'")
        return None
    return value


def _capability(r: _Reader, key: str) -> str | None:
    return r.text(key, _CAPABILITY, "a compute capability such as '8.0'")


def _capabilities(r: _Reader, key: str) -> tuple[str, ...] | None:
    rule = re.compile("^(?:" + "|".join(CAPABILITIES) + ")$")
    return r.texts(r.data, key, "", rule, f"one of {', '.join(CAPABILITIES)}")


def _context(r: _Reader, key: str) -> Context | None:
    table = r.data.get(key)
    if table is None:
        return None
    if not isinstance(table, dict):
        r.problem(key, table, "a table")
        return None
    r.unknown_keys(table, ("maximum", "key"), f"{key}.")
    maximum, field = table.get("maximum"), table.get("key")
    if maximum is not None and (isinstance(maximum, bool) or not isinstance(maximum, int) or maximum < 1):
        r.problem(f"{key}.maximum", maximum, "a number of tokens")
        return None
    if field is not None and (not isinstance(field, str) or not _KEY.match(field)):
        r.problem(f"{key}.key", field, "the name of a config field")
        return None
    return Context(maximum=maximum, key=field)


def _variants(r: _Reader, key: str) -> tuple[Variant, ...]:
    variants = []
    for where, table in r.tables(key):
        r.unknown_keys(table, ("id", "name", "match", "present", "absent", "revision"), where)
        match = table.get("match", {})
        if not isinstance(match, dict) or not all(isinstance(v, (str, int, float, bool)) for v in match.values()):
            r.problem(f"{where}match", match, "a table of config fields and values")
            match = {}
        present = r.texts(table, "present", where, _KEY, "a config field") or ()
        absent = r.texts(table, "absent", where, _KEY, "a config field") or ()
        values = [table.get("id"), table.get("name"), table.get("revision", "")]
        for field, value in zip(("id", "name", "revision"), values, strict=True):
            if not isinstance(value, str) or (field != "revision" and not value):
                r.problem(f"{where}{field}", value, "a text")
        if not match and not present and not absent:
            r.problems.append(f"{where[:-1]}: no match, present or absent: it would name every checkpoint")
        variants.append(Variant(str(values[0]), str(values[1]), match, present, absent, values[2] or None))
    return tuple(variants)


def _roles(r: _Reader, key: str) -> tuple[RolePattern, ...]:
    name = re.compile(r"^\S{1,512}$")
    roles = []
    for where, table in r.tables(key):
        r.unknown_keys(table, ("kind", "names", "scales", "part"), where)
        kind, part = table.get("kind"), table.get("part")
        if kind not in ROLE_KINDS:
            r.problem(f"{where}kind", kind, f"one of {', '.join(ROLE_KINDS)}")
        if part is not None and (not isinstance(part, str) or not _KEY.match(part)):
            r.problem(f"{where}part", part, "a dotted name")
        names = r.texts(table, "names", where, name, "a name pattern", least=0 if table.get("scales") else 1) or ()
        scales = r.texts(table, "scales", where, name, "a name pattern") or ()
        roles.append(RolePattern(str(kind), names, scales, part if isinstance(part, str) else None))
    return tuple(roles)


def _renames(r: _Reader, key: str) -> tuple[Rename, ...]:
    renames = []
    for where, table in r.tables(key):
        r.unknown_keys(table, ("old", "new"), where)
        old, new = table.get("old"), table.get("new")
        if isinstance(old, str) and isinstance(new, str):
            renames.append(Rename(old, new))
        else:
            r.problem(where[:-1], table, "a table with the texts old and new")
    return tuple(renames)


_TYPE = "a model type: letters, digits, _, - and ."
_FIELDS: dict[str, Callable[[_Reader, str], Any]] = {
    "id": lambda r, k: r.text(k, _ID, "an id: lower-case letters, digits and _", required=True),
    "api": _api,
    "name": lambda r, k: r.text(k, re.compile(r"^\S.{0,127}$"), "a name of 1 to 128 characters", required=True),
    "model_types": lambda r, k: r.texts(r.data, k, "", _MODEL_TYPE, _TYPE, least=1),
    "aliases": lambda r, k: r.texts(r.data, k, "", _MODEL_TYPE, _TYPE),
    "architectures": lambda r, k: r.texts(r.data, k, "", _CLASS, "a class name"),
    "text_config": lambda r, k: r.text(k, _KEY, "the name of a config field"),
    "engine": lambda r, k: r.text(k, _ENGINE, "module:Class"),
    "stages": lambda r, k: r.texts(r.data, k, "", re.compile(r"^[a-z][a-z0-9_]*$"), "the name of a stage"),
    "minimum_compute_capability": _capability,
    "context": _context,
    "capabilities": _capabilities,
    "variants": _variants,
    "prefix": lambda r, k: r.text(k, re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*\.$"), "a prefix that ends with a dot"),
    "renames": _renames,
    "roles": _roles,
}
