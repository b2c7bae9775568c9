"""The registry: which family a config belongs to, and why; or why none."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from coli.errors import FamilyError
from coli.families import plugins as plugin_room
from coli.families.descriptor import Descriptor, Variant, parse_descriptor

__all__ = ["Explanation", "Family", "Provider", "Refusal", "Registry", "Resolution"]

Provider = plugin_room.Provider
Refusal = plugin_room.Refusal

BUILT_IN = Provider("built in", "coli", "", str(Path(__file__).parent))


class Family(NamedTuple):
    """A family that can be resolved, and who provides it."""

    descriptor: Descriptor
    provider: Provider

    @property
    def status(self) -> str:
        """Return `engine` or `names only`."""
        return "engine" if self.descriptor.engine else "names only"


class Resolution(NamedTuple):
    """The answer for one config. `text` is the config of the language model, `text_source` the key it is under."""

    family: Family
    model_type: str
    found_by: str
    text: Mapping[str, Any]
    text_source: str | None
    variant: Variant | None
    context: int | None
    why: tuple[str, ...]

    @property
    def descriptor(self) -> Descriptor:
        """Return the descriptor of the family."""
        return self.family.descriptor

    @property
    def name(self) -> str:
        """Return the display name: that of the variant, or of the family."""
        return self.variant.name if self.variant else self.descriptor.name

    @property
    def revision(self) -> str | None:
        """Return the revision of the release that the config belongs to, None for the first."""
        return self.variant.revision if self.variant else None

    def require_engine(self, subject: str = "config.json") -> str:
        """Return the engine entry `module:Class`. Raises FamilyError for a family that has names and types only."""
        if self.descriptor.engine:
            return self.descriptor.engine
        raise FamilyError(
            subject,
            f"{self.descriptor.name} is known, but has no engine here",
            observed=f"model_type {self.model_type!r}, family {self.descriptor.id}",
            expected="a family with an engine",
            fix="install a plugin that provides an engine for it; `coli families` lists what is installed",
            code="family.no-engine",
            data={"family": self.descriptor.id},
        )


class Explanation(NamedTuple):
    """Why something resolves (`resolution`), or why not (`error`); `why` are the steps in both cases."""

    subject: str
    resolution: Resolution | None
    error: FamilyError | None
    why: tuple[str, ...]


class Registry:
    """Families by model type and architecture. Construction decides every conflict; resolution only looks up."""

    def __init__(self, families: Iterable[Family], refused: Iterable[Refusal] = ()) -> None:
        self._families, more = _settle(list(families))
        self._refused = tuple(refused) + tuple(more)
        self._by_type: dict[str, Family] = {}
        self._by_class: dict[str, list[Family]] = {}
        # A family with an engine answers for a type before one that has names only.
        for family in sorted(self._families, key=lambda f: f.descriptor.engine is None):
            for model_type in family.descriptor.types():
                self._by_type.setdefault(model_type, family)
            for name in family.descriptor.architectures:
                self._by_class.setdefault(name, []).append(family)

    @classmethod
    def load(cls, plugins: tuple[str, ...] | None = None) -> Registry:
        """Read the built-in families and the descriptors of installed plugins; no plugin code runs.

        ``plugins``: distributions or packages that may be used (COLI_PLUGINS); None: all, empty: none.
        """
        families = [Family(d, BUILT_IN) for d in _built_in(Path(__file__).parent)]
        found, refused = plugin_room.discover(plugins)
        families += [Family(plugin.descriptor, plugin.provider) for plugin in found]
        return cls(families, refused)

    def families(self) -> tuple[Family, ...]:
        """Return the families in order of their id."""
        return self._families

    def refused(self) -> tuple[Refusal, ...]:
        """Return plugins that are installed but not used, with reasons."""
        return self._refused

    def get(self, family_id: str) -> Family:
        """Return a family by id. Raises FamilyError with the nearest ids."""
        for family in self._families:
            if family.descriptor.id == family_id:
                return family
        ids = [f.descriptor.id for f in self._families]
        raise FamilyError(
            family_id,
            "no family has this id",
            expected=_nearest(family_id, ids) or ", ".join(ids),
            fix="`coli families` lists the ids",
            code="family.unknown-id",
        )

    def resolve(self, config: Mapping[str, Any], subject: str = "config.json") -> Resolution:
        """Find the family of a parsed config.json. Raises FamilyError: wrong or missing type, unknown type."""
        why: list[str] = []
        return self._resolve(config, subject, why)

    def explain(self, config: Mapping[str, Any] | str, subject: str | None = None) -> Explanation:
        """Say why a config, or a bare model type, resolves or not. Never raises FamilyError."""
        why: list[str] = []
        if isinstance(config, str):
            subject = subject or config
            family = next((f for f in self._families if f.descriptor.id == config), None)
            if config not in self._by_type and family:
                why.append(f"{config!r} is a family, with the model types {', '.join(family.descriptor.types())}")
                config = family.descriptor.model_types[0]
            config = {"model_type": config}
        subject = subject or "config.json"
        try:
            resolution = self._resolve(config, subject, why)
            resolution.require_engine(subject)
        except FamilyError as error:
            found = None if error.code != "family.no-engine" else resolution
            return Explanation(subject, found, error, tuple(why))
        return Explanation(subject, resolution, None, tuple(why))

    def _resolve(self, config: Mapping[str, Any], subject: str, why: list[str]) -> Resolution:
        model_type = config.get("model_type")
        classes = _classes(config)
        if model_type is not None and not isinstance(model_type, str):
            raise FamilyError(
                subject,
                "model_type must be a text",
                observed=f"{type(model_type).__name__} {str(model_type)[:60]}",
                expected="the name of a model type such as 'deepseek_v4'",
                fix="take the config.json of the original checkpoint",
                code="family.model-type",
            )
        if model_type:
            why.append(f"model_type is {model_type!r}")
            family = self._by_type.get(model_type)
            found_by = "model_type"
            if family is None:
                raise self._unknown(config, subject, model_type, classes, why)
            if model_type in family.descriptor.aliases:
                why.append(f"{model_type!r} is an older name of {family.descriptor.model_types[0]!r}")
        else:
            family, model_type = self._by_architecture(subject, classes, why)
            found_by = "architectures"
        why.append(f"family {family.descriptor.id} ({family.provider.text()})")
        return self._complete(family, model_type, found_by, config, why)

    def _by_architecture(self, subject: str, classes: tuple[str, ...], why: list[str]) -> tuple[Family, str]:
        # Only when there is no model_type: other families borrow the class names of their relatives (Kimi K2 says
        # DeepseekV3ForCausalLM), so a class is weaker evidence than a type.
        why.append("no model_type; architectures says " + (", ".join(classes) or "nothing"))
        candidates = {f.descriptor.id: f for name in classes for f in self._by_class.get(name, [])}
        if len(candidates) == 1:
            family = next(iter(candidates.values()))
            return family, family.descriptor.model_types[0]
        raise FamilyError(
            subject,
            "model_type is missing" + (", and architectures names no single family" if classes else ""),
            observed=f"architectures {', '.join(classes)}" if classes else "neither model_type nor architectures",
            expected=f"one of {', '.join(candidates)}" if candidates else "model_type",
            fix="add model_type to config.json, or take the config.json of the original checkpoint",
            code="family.no-model-type",
        )

    def _complete(
        self, family: Family, model_type: str, found_by: str, config: Mapping[str, Any], why: list[str]
    ) -> Resolution:
        descriptor = family.descriptor
        text, source = config, None
        if descriptor.text_config:
            nested = config.get(descriptor.text_config)
            if isinstance(nested, Mapping):
                text, source = nested, descriptor.text_config
                why.append(f"the language model is described under {source}")
        variant = next((v for v in descriptor.variants if v.applies(text)), None)
        if variant:
            why.append(f"geometry of {variant.name}")
        elif descriptor.variants and len(text) > 1:  # a bare model type says nothing about geometry
            why.append("geometry of no released variant")
        limits = [descriptor.context.maximum]
        declared = text.get(descriptor.context.key) if descriptor.context.key else None
        if isinstance(declared, int) and not isinstance(declared, bool) and declared > 0:
            limits.append(declared)
        context = min((limit for limit in limits if limit is not None), default=None)
        return Resolution(family, model_type, found_by, text, source, variant, context, tuple(why))

    def _unknown(
        self, config: Mapping[str, Any], subject: str, model_type: str, classes: tuple[str, ...], why: list[str]
    ) -> FamilyError:
        shown = model_type if len(model_type) <= 80 else model_type[:77] + "..."
        observed = f"model_type {shown!r}"
        if classes:
            observed += f", architectures {', '.join(classes)}"
            relatives = sorted({f.descriptor.id for name in classes for f in self._by_class.get(name, [])})
            if relatives:
                # Said, not done: the class of a neighbour is no proof that its engine computes this model.
                why.append(f"architectures is also used by {', '.join(relatives)}, which is not enough to choose it")
        why.append(f"no family has the model type {shown!r}")
        for key, value in config.items():
            inner = value.get("model_type") if isinstance(value, Mapping) else None
            part = self._by_type.get(inner) if isinstance(inner, str) else None
            if part:
                why.append(f"{key} is of family {part.descriptor.id}, but a part of a model is not the model")
        near = _nearest(model_type, self._by_type)
        providers = [r for r in self._refused if model_type in r.model_types]
        if providers:
            fix = "; ".join(f"{r.provider.text()} provides it, but {r.reason}" for r in providers)
        elif config.get("auto_map"):
            fix = "no installed plugin provides it; the remote code that auto_map names is never run"
        else:
            fix = "no installed plugin provides it; `coli families` lists what is known"
        return FamilyError(
            subject,
            "the model type is unknown, and no other family's engine is tried",
            observed=observed,
            expected=f"perhaps {near}" if near else "one of the types of `coli families`",
            fix=fix,
            code="family.unknown-type",
            data={"model_type": model_type, "architectures": classes, "nearest": near, "known": tuple(self._by_type)},
        )


def _classes(config: Mapping[str, Any]) -> tuple[str, ...]:
    value = config.get("architectures")
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        return ()
    # Printed in errors: what a stranger's config says must not move the cursor.
    return tuple("".join(x if x.isprintable() else "?" for x in c[:128]) for c in value[:8] if isinstance(c, str))


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.lower()[:96].replace("-", "_"), list(known), n=3, cutoff=0.6)
    return ", ".join(close)


def _built_in(folder: Path) -> list[Descriptor]:
    files = sorted(folder.glob("*/family.toml"))
    return [parse_descriptor(f.read_text("utf-8"), f"{f.parent.name}/{f.name}") for f in files]


def _settle(families: list[Family]) -> tuple[tuple[Family, ...], list[Refusal]]:
    """Decide conflicts: an id or a type has one owner.

    Built-in families with an engine come first. A plugin with an engine may take over a built-in family that has names
    only. Two plugins that claim the same name are both refused: the order of installation is no reason to prefer one.
    """
    fixed = [f for f in families if f.provider.source == BUILT_IN.source]
    plugins = [f for f in families if f.provider.source != BUILT_IN.source]
    refused: list[Refusal] = []
    claims: dict[str, list[Family]] = {}
    for family in plugins:
        for name in _names(family):
            claims.setdefault(name, []).append(family)
    owners = {name: f for f in fixed for name in _names(f)}
    kept: list[Family] = []
    for family in plugins:
        reasons = []
        for name in _names(family):
            rivals = [f for f in claims[name] if f is not family]
            owner = owners.get(name)
            if rivals:
                reasons.append(f"{name} is also claimed by {', '.join(r.provider.text() for r in rivals)}")
            elif owner and (owner.descriptor.engine or not family.descriptor.engine):
                reasons.append(f"{name} belongs to the built-in family {owner.descriptor.id}")
        if reasons:
            if any("claimed" in reason for reason in reasons):
                reasons.append("uninstall one, or name the one to use in COLI_PLUGINS")
            text = "; ".join(reasons)
            refused.append(Refusal(family.provider, "plugin.duplicate", text, family.descriptor.types()))
        else:
            kept.append(family)
    taken = {name for f in kept for name in _names(f)}
    left = [f for f in fixed if f.descriptor.engine or f"id {f.descriptor.id}" not in taken]
    left = [f for f in left if f.descriptor.engine or any(f"model type {t}" not in taken for t in f.descriptor.types())]
    return tuple(sorted(kept + left, key=lambda f: f.descriptor.id)), refused


def _names(family: Family) -> list[str]:
    return [f"id {family.descriptor.id}", *(f"model type {t}" for t in family.descriptor.types())]
