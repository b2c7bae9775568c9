"""Checks of a checkpoint: what its probe found, by part."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from coli.doctor.checks.finding import FINAL, Check, Evidence, Finding, not_known, seen
from coli.doctor.facts.checkpoint import CheckpointFacts, Part, Problem
from coli.doctor.facts.machine import MachineFacts
from coli.units import render_size

__all__ = ["CHECKS"]

_SHOWN = 3  # names of files in one line
_OF_FILES: tuple[Part, ...] = ("location", "weights", "values", "mirror")
# What a failure comes with that its reader knows no remedy for.
_REMEDIES: dict[Part, str] = {
    "family": "none here: choose another model",
    "tokenizer": "take tokenizer.json from where the model was published; if it is the same, choose another model",
    "chat": "none here: choose another model, or another release of it",
    "config": "take config.json from where the model was published; if it is the same, choose another model",
}
_DOWNLOAD = "download what is named again; if that changes nothing, it was made so: choose another copy of the model"


def _findings(problems: Sequence[Problem], checkpoint: CheckpointFacts) -> Iterator[Finding]:
    """Yield a finding for each kind of problem: 46 files that were not fetched are one thing to do."""
    folder = checkpoint.folder.value
    hopeless = any(problem.status == "fail" and problem.code in FINAL for problem in checkpoint.problems)
    groups: dict[tuple[str, str, str, str | None], list[Problem]] = {}
    for problem in problems:
        problem = _described(problem, checkpoint)
        groups.setdefault((problem.code, problem.status, problem.summary, problem.fix), []).append(problem)
    for same in groups.values():
        first, names = same[0], [_shown(problem.subject, folder) for problem in same]
        evidence = tuple(Evidence(_sized(one.evidence), one.subject) for one in same if one.evidence)
        fix, commands = _split(first.fix)
        fetch = _fetch(first, checkpoint)
        if fetch is not None and first.part in _OF_FILES:
            fix, commands = "download it again: what is there is kept, and what is unfinished goes on", (fetch,)
        if first.status == "fail":
            fix = fix or _remedy(first)
            if first.code in FINAL and "another model" not in fix:
                fix = f"{fix}; without one choose another model"
            if hopeless and first.part in _OF_FILES:
                fix = f"only worth it once there is an engine for this model: {fix}"
        if folder is not None and any(command.startswith("git ") for command in commands):
            commands = (f"cd {shlex.quote(str(folder))}", *commands)
        cost = "the model cannot run" if first.status == "fail" else None
        listed = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        subject = listed if len(same) == 1 else f"{len(same)} files ({listed})"
        summary = first.summary if len(same) == 1 and first.subject in first.summary else f"{subject}: {first.summary}"
        yield Finding(first.code, first.status, summary, evidence, fix, commands, cost)


def _described(problem: Problem, checkpoint: CheckpointFacts) -> Problem:
    """Return a problem in words that fit this checkpoint, where its reader could not know."""
    if problem.part == "tokenizer" and Path(problem.subject).parent.name == "blobs":
        return replace(problem, subject="tokenizer.json")  # the name behind the link says nothing
    if problem.code != "checkpoint.no-config" or problem.part != "location" or "GGUF" in (problem.fix or ""):
        return problem
    if not checkpoint.shards and not checkpoint.ignored:
        return replace(
            problem,
            summary="no file of a model is here: neither config.json nor .safetensors",
            fix="give the folder of a model (the one with config.json), or download one",
        )
    lacking = ["config.json"] + ["tokenizer.json"] * (checkpoint.tokenizer.value is None)
    return replace(
        problem,
        summary=f"weights are here, and {' and '.join(lacking)} {'are' if len(lacking) > 1 else 'is'} missing",
        fix=f"download {' and '.join(lacking)} from where the weights were published into this folder, or give the "
        "folder that has them",
    )


def _fetch(problem: Problem, checkpoint: CheckpointFacts) -> str | None:
    """Return the command that fetches what is missing from the hub; None where the folder does not tell whence."""
    hub, folder = checkpoint.hub.value, checkpoint.folder.value
    kinds = ("missing-shard", "incomplete-download", "dangling-link", "truncated", "no-config", "no-tokenizer")
    if hub is None or folder is None or problem.kind not in kinds or problem.status != "fail":
        return None
    cache = shlex.quote(str(folder.parents[2]))
    again = " --force-download" if problem.kind == "truncated" else ""
    repository, revision = shlex.quote(hub.repository), shlex.quote(hub.revision)
    return f"hf download {repository} --revision {revision} --cache-dir {cache}{again}"


def _remedy(problem: Problem) -> str:
    return _REMEDIES.get("family" if problem.code in FINAL else problem.part, _DOWNLOAD)


def _sized(text: str) -> str:
    """Return a text with sizes in GiB beside long numbers of bytes."""
    return re.sub(r"\b(\d{8,18}) bytes", lambda found: f"{found[0]} ({render_size(int(found[1]))})", text)


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
        if any(problem.code == "checkpoint.no-config" for problem in checkpoint.problems):
            # A folder in which nothing of a model is lacks no weights: that is said once.
            problems = [problem for problem in problems if problem.code != "checkpoint.no-weights"]
        yield from _findings(problems, checkpoint)
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
    # Weights are looked into without a config too: what is wrong with them is another thing.
    _check("checkpoint.files", (), ("weights", "mirror"), "whether its files are whole", _files),
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
