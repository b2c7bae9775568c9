"""`coli families`: list model families and plugins, and explain how a model resolves."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coli.cli.options import with_settings
from coli.errors import CheckpointError
from coli.settings import Resolved

if TYPE_CHECKING:
    from coli.cli.terminal import Terminal
    from coli.families.config_facts import ConfigFacts
    from coli.families.probe import Verdict
    from coli.families.registry import Explanation, Family, Refusal, Registry, Resolution
    from coli.families.roles import Inventory

__all__ = ["command"]


@click.group("families", invoke_without_command=True)
@with_settings("families")
def command(settings: Resolved) -> None:
    """List model families and plugins, or explain how a model resolves."""
    if click.get_current_context().invoked_subcommand:
        return
    registry = _registry(settings)
    verdicts = _verdicts(registry)
    if settings["json"]:
        _print_json(
            families=[_family_record(f, verdicts.get(f.descriptor.id)) for f in registry.families()],
            refused=[_refusal_record(r) for r in registry.refused()],
        )
        return
    terminal = _terminal(settings)
    rows = []
    for family in registry.families():
        verdict = verdicts.get(family.descriptor.id)
        status = family.status if verdict is None or verdict.ok else "refused"
        types = ", ".join(family.descriptor.types())
        rows.append((family.descriptor.id, family.descriptor.name, status, family.provider.text(), types))
    terminal.table(("family", "name", "status", "provider", "model types"), rows)
    for family in registry.families():
        verdict = verdicts.get(family.descriptor.id)
        if verdict and not verdict.ok:
            terminal.line(f"{family.descriptor.id}: engine of {family.provider.text()} refused: {verdict.reason}")
        elif verdict and verdict.printed:
            terminal.line(f"{family.descriptor.id}: engine of {family.provider.text()} prints when it is imported")
    for refusal in registry.refused():
        terminal.line(f"{refusal.provider.text()} refused: {refusal.reason}")


@command.command("show", short_help="Show what a family declares.")
@click.argument("family_id", metavar="ID")
@with_settings("families")
def show(settings: Resolved, family_id: str) -> None:
    """Show what a family declares: types, variants, stages, tensor roles."""
    registry = _registry(settings)
    family = registry.get(family_id)
    verdict = _verdicts(registry, family_id).get(family_id)
    if settings["json"]:
        _print_json(family=_family_record(family, verdict, whole=True))
        return
    d = family.descriptor
    terminal = _terminal(settings)
    terminal.facts(
        (name, value or "-")
        for name, value in (
            ("family", f"{d.id}: {d.name}"),
            ("provider", f"{family.provider.text()}, {d.origin}"),
            ("status", family.status if verdict is None or verdict.ok else f"refused: {verdict.reason}"),
            ("engine", d.engine),
            ("family API", d.api),
            ("model types", ", ".join(d.model_types)),
            ("older names", ", ".join(d.aliases)),
            ("architectures", ", ".join(d.architectures)),
            ("text config", d.text_config),
            ("context", "not known" if d.context.maximum is None else f"up to {d.context.maximum} tokens"),
            ("capabilities", ", ".join(d.capabilities)),
            ("CUDA", d.minimum_compute_capability and f"compute capability {d.minimum_compute_capability} or later"),
            ("stages", ", ".join(d.stages)),
        )
    )
    if d.variants:
        terminal.table(("variant", "name", "when"), [(v.id, v.name, _conditions(v)) for v in d.variants])
    if d.roles:
        terminal.table(("role", "tensors"), [(r.kind, "\n".join([*r.names, *r.scales])) for r in d.roles])


@command.command("explain", short_help="Say why a model resolves, or why not.")
@click.argument("model_or_type", metavar="MODEL_OR_TYPE")
@with_settings("families")
def explain(settings: Resolved, model_or_type: str) -> int:
    """Explain why a checkpoint or a model type resolves, or why not."""
    registry = _registry(settings)
    explanation, facts, notes = _explain(registry, model_or_type)
    code = explanation.error.exit_code if explanation.error else 0
    inventory, trouble = _inventory(explanation, model_or_type)
    if trouble is not None:
        notes = [*notes, f"its files cannot be listed: {trouble.rule} ({trouble.subject})"]
    if settings["json"]:
        resolution = explanation.resolution
        _print_json(
            subject=explanation.subject,
            resolution=_resolution_record(resolution) if resolution else None,
            facts=_plain(facts) if facts else None,
            inventory=_plain(inventory) if inventory else None,
            notes=notes,
            why=explanation.why,
            error=explanation.error.as_dict() if explanation.error else None,
        )
        return code
    terminal = _terminal(settings)
    for step in explanation.why:
        terminal.line(f"- {step}")
    for note in notes:
        terminal.note(f"  note: {note}")
    if explanation.resolution:
        terminal.facts(_resolution_facts(explanation.resolution))
    if inventory is not None:
        _show_inventory(inventory, terminal)
    if explanation.error:
        click.echo(f"coli: {explanation.error.text()}", err=True)
    return code


def _registry(settings: Resolved) -> Registry:
    from coli.families.registry import Registry

    plugins = settings["plugins"]
    return Registry.load(None if plugins is None else tuple(plugins))


def _terminal(settings: Resolved) -> Terminal:
    from coli.cli.terminal import Terminal

    return Terminal.from_settings(sys.stdout, settings)


def _verdicts(registry: Registry, only: str | None = None) -> dict[str, Verdict]:
    """Return what the engines of plugins did when they were imported in a child process, by family id."""
    wanted = [f for f in registry.families() if f.provider.source == "plugin" and f.descriptor.engine]
    wanted = [f for f in wanted if only in (None, f.descriptor.id)]
    if not wanted:
        return {}
    from coli.families.probe import probe
    from coli.paths import cache_folder

    return {f.descriptor.id: probe(f, cache_folder()) for f in wanted}


def _explain(registry: Registry, subject: str) -> tuple[Explanation, ConfigFacts | None, list[str]]:
    # A word that is a known type is a type, even when a folder of that name is here.
    explanation = registry.explain(subject)
    path = Path(subject)
    if not subject.strip() or (("/" in subject or os.sep in subject) and not path.exists()):
        raise CheckpointError(
            subject,
            "this is neither a model type nor a folder or file that is there",
            fix="give a model type such as deepseek_v4, or the folder that holds config.json",
            code="checkpoint.no-folder",
        )
    if explanation.resolution or not path.exists():
        return explanation, None, []
    from coli.engine.location import child, find_snapshot
    from coli.families.config_facts import config_facts
    from coli.families.config_file import read_config

    # What `coli run` takes as a model is one here too, and a config.json alone besides.
    config = read_config(path if path.suffix == ".json" else child(find_snapshot(path), "config.json"))
    facts = config_facts(config.data, str(config.path))
    return registry.explain(config.data, str(config.path)), facts, [*config.notes, *facts.notes]


def _inventory(explanation: Explanation, subject: str) -> tuple[Inventory | None, CheckpointError | None]:
    """Sum the tensors of a checkpoint folder by role, from headers alone; None where there are no roles or no files."""
    resolution = explanation.resolution
    if resolution is None or not resolution.descriptor.roles or not Path(subject).is_dir():
        return None, None
    from coli.engine.checkpoint import Checkpoint
    from coli.families.roles import RoleTable

    try:
        with Checkpoint.open(subject) as checkpoint:
            return RoleTable(resolution.descriptor).inventory(checkpoint.tensors), None
    except CheckpointError as error:
        return None, error


def _show_inventory(inventory: Inventory, terminal: Terminal) -> None:
    from coli.units import render_size

    rows = [
        (kind, str(sum_.tensors), render_size(sum_.nbytes), " ".join(sum_.dtypes))
        for kind, sum_ in inventory.kinds.items()
    ]
    if inventory.unknown:
        shown = ", ".join(inventory.unknown[:3]) + (" ..." if len(inventory.unknown) > 3 else "")
        rows.append(("no role", str(len(inventory.unknown)), render_size(inventory.unknown_bytes), shown))
    tensors = sum(sum_.tensors for sum_ in inventory.kinds.values()) + len(inventory.unknown)
    rows.append(("all", str(tensors), render_size(inventory.total_bytes), ""))
    terminal.table(("role", "tensors", "bytes", "types"), rows)


def _conditions(variant: Any) -> str:
    conditions = [f"{key} = {value}" for key, value in variant.match.items()]
    conditions += [f"with {key}" for key in variant.present] + [f"without {key}" for key in variant.absent]
    return ", ".join(conditions)


def _resolution_facts(resolution: Resolution) -> list[tuple[str, str]]:
    return [
        ("family", resolution.descriptor.id),
        ("model", resolution.name),
        ("engine", resolution.descriptor.engine or "none here"),
        ("context", "not known" if resolution.context is None else f"{resolution.context} tokens"),
    ]


def _family_record(family: Family, verdict: Verdict | None, whole: bool = False) -> dict[str, Any]:
    d = family.descriptor
    record: dict[str, Any] = {
        "id": d.id,
        "name": d.name,
        "status": family.status if verdict is None or verdict.ok else "refused",
        "model_types": d.model_types,
        "aliases": d.aliases,
        "architectures": d.architectures,
        "engine": d.engine,
        "capabilities": d.capabilities,
        "variants": [v.id for v in d.variants],
        "provider": family.provider._asdict(),
        "probe": verdict._asdict() if verdict else None,
    }
    if whole:
        import msgspec

        record["descriptor"] = msgspec.to_builtins(d)
    return record


def _refusal_record(refusal: Refusal) -> dict[str, Any]:
    return {
        "provider": refusal.provider._asdict(),
        "code": refusal.code,
        "reason": refusal.reason,
        "model_types": refusal.model_types,
    }


def _resolution_record(resolution: Resolution) -> dict[str, Any]:
    return {
        "family": resolution.descriptor.id,
        "name": resolution.name,
        "model_type": resolution.model_type,
        "found_by": resolution.found_by,
        "text_source": resolution.text_source,
        "variant": resolution.variant.id if resolution.variant else None,
        "revision": resolution.revision,
        "context": resolution.context,
        "engine": resolution.descriptor.engine,
        "provider": resolution.family.provider._asdict(),
    }


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {key: _plain(item) for key, item in value._asdict().items()}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _print_json(**fields: Any) -> None:
    click.echo(json.dumps({"schema": "coli.families/1", **fields}, ensure_ascii=False, indent=2))
