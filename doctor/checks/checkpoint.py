"""Checks of a checkpoint: what its probe found, by part."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from coli.doctor.checks.finding import Check, Evidence, Finding, not_known, seen
from coli.doctor.facts.checkpoint import CheckpointFacts, Part, Problem
from coli.doctor.facts.machine import MachineFacts
from coli.units import render_size

__all__ = ["CHECKS"]

_SHOWN = 3  # names of files in one line


def _findings(problems: Sequence[Problem], folder: Path | None) -> Iterator[Finding]:
    """Yield a finding for each kind of problem: 46 files that were not fetched are one thing to do."""
    groups: dict[tuple[str, str, str, str | None], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem.code, problem.status, problem.summary, problem.fix), []).append(problem)
    for same in groups.values():
        first, names = same[0], [_shown(problem.subject, folder) for problem in same]
        evidence = tuple(Evidence(problem.evidence, problem.subject) for problem in same if problem.evidence)
        fix, commands = _split(first.fix)
        if folder is not None and any(command.startswith("git ") for command in commands):
            commands = (f"cd {shlex.quote(str(folder))}", *commands)
        cost = "the model cannot run" if first.status == "fail" else None
        listed = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        subject = listed if len(same) == 1 else f"{len(same)} files ({listed})"
        summary = first.summary if len(same) == 1 and first.subject in first.summary else f"{subject}: {first.summary}"
        yield Finding(first.code, first.status, summary, evidence, fix, commands, cost)


def _shown(subject: str, folder: Path | None) -> str:
    """Return a file's name within the checkpoint: the folder stands above it in the report."""
    path = Path(subject)
    return str(path.relative_to(folder)) if folder is not None and folder in path.parents else subject


def _split(fix: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Take what stands between grave accents out of a sentence: commands to paste."""
    if fix is None:
        return None, ()
    parts = fix.split("`")
    # One with a word to be filled in stays in the sentence: it cannot be pasted as it is.
    commands = tuple(part for part in parts[1::2] if " " in part.strip() and not re.search(r"\b[A-Z]{4,}\b", part))
    return fix, commands


def _of(
    parts: tuple[Part, ...], well: Callable[[CheckpointFacts], Finding]
) -> Callable[[MachineFacts], Iterator[Finding]]:
    def run(facts: MachineFacts) -> Iterator[Finding]:
        checkpoint = facts.checkpoint
        if checkpoint is None:
            yield not_known("checkpoint", "the checkpoint", "no MODEL was given")
            return
        problems = [problem for problem in checkpoint.problems if problem.part in parts]
        yield from _findings(problems, checkpoint.folder.value)
        if not any(problem.status in ("warn", "fail") for problem in problems):
            yield well(checkpoint)

    return run


def _folder(facts: CheckpointFacts) -> Finding:
    if facts.folder.value is None:
        return not_known("checkpoint", "the folder", facts.folder.source)
    hub = facts.hub.value
    shown = str(facts.folder.value)
    if hub is not None:
        shown += f" ({hub.repository}, revision {hub.revision[:12]})"
    return Finding("checkpoint.folder", "ok", shown, (seen(str(facts.given), facts.folder),))


def _config(facts: CheckpointFacts) -> Finding:
    config = facts.config.value
    if config is None:
        return not_known("checkpoint", "its config.json", facts.config.source)
    shown = f"model_type {config.model_type or 'not given'}"
    shown += f", {config.layers} layers" if config.layers else ""
    shown += f", {config.experts} experts" if config.experts else ""
    return Finding("checkpoint.config-read", "ok", shown, (seen(", ".join(config.architectures), facts.config),))


def _family(facts: CheckpointFacts) -> Finding:
    family = facts.family.value
    if family is None:
        return not_known("checkpoint", "its family", facts.family.source)
    shown = f"{family.name}" + (f", {family.variant}" if family.variant else "") + f", found by {family.found_by}"
    return Finding("family.resolved", "ok", shown, tuple(Evidence(why, family.provider) for why in family.why))


def _files(facts: CheckpointFacts) -> Finding:
    if not facts.shards:
        return not_known("checkpoint", "its weight files", "none was read")
    tensors = sum(shard.tensors or 0 for shard in facts.shards)
    size = facts.weight_bytes.value
    shown = f"{len(facts.shards)} files, {tensors} tensors" + (f", {render_size(size)}" if size is not None else "")
    return Finding("checkpoint.whole", "ok", shown, (seen(str(size), facts.weight_bytes),))


def _roles(facts: CheckpointFacts) -> Finding:
    roles = facts.roles.value
    if roles is None:
        return not_known("checkpoint", "the roles of its tensors", facts.roles.source)
    largest = sorted(roles, key=lambda role: -role.nbytes)[:4]
    shown = ", ".join(f"{role.kind} {render_size(role.nbytes)}" for role in largest)
    return Finding("checkpoint.roles", "ok", f"every tensor has a role: {shown}")


def _text(facts: CheckpointFacts) -> Finding:
    tokenizer, chat = facts.tokenizer.value, facts.chat.value
    if tokenizer is None:
        return not_known("checkpoint", "its tokenizer", facts.tokenizer.source)
    shown = f"tokenizer of {tokenizer.vocabulary} ids"
    shown += f", chat format {chat.module}" + (f" ({chat.revision})" if chat.revision else "") if chat else ""
    return Finding("checkpoint.text", "ok", shown)


def _values(facts: CheckpointFacts) -> Finding:
    deep = facts.deep.value
    if deep is None:
        return Finding("checkpoint.not-read", "skip", "not read through: `--deep` reads all weights")
    shown = f"{render_size(deep.read_bytes)} of {render_size(deep.data_bytes)} read, {deep.checked_tensors} tensors"
    return Finding("checkpoint.values", "ok", shown)


_READS = ("checkpoint",)


def _check(
    id: str,
    needs: tuple[str, ...],
    parts: tuple[Part, ...],
    asks: str,
    well: Callable[[CheckpointFacts], Finding],
) -> Check:
    return Check(id, needs, _READS, asks, _of(parts, well), model=True)


CHECKS = (
    _check("checkpoint.folder", (), ("location",), "whether there is a checkpoint at MODEL", _folder),
    _check("checkpoint.config", ("checkpoint.folder",), ("config",), "whether config.json can be read", _config),
    _check("checkpoint.family", ("checkpoint.config",), ("family",), "which family runs it", _family),
    _check("checkpoint.files", ("checkpoint.folder",), ("weights", "mirror"), "whether its files are whole", _files),
    _check(
        "checkpoint.roles",
        ("checkpoint.files", "checkpoint.family"),
        ("roles",),
        "whether every tensor has a place in the engine",
        _roles,
    ),
    _check("checkpoint.text", ("checkpoint.folder",), ("tokenizer", "chat"), "tokenizer and chat format", _text),
    _check("checkpoint.values", ("checkpoint.files",), ("values",), "what `--deep` finds in the data", _values),
)
