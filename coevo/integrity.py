"""Checksums of a run's files: sealed in the journal with the phase that wrote them, checked before a
run goes on.

A phase's journal entry lists its files (`seal`). `check` finds those that changed since; `repair` moves
them aside and cuts the journal back to the last phase whose files are all whole, so that the rest is
done again. What several files hold (a trainer checkpoint, a part of the buffer, published weights) is
listed by its manifest, which has the checksums of the others.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coevo import events
from coevo.config import RunConfig
from coevo.metrics import MetricsError, MetricsLog, read_metrics
from coevo.rundir import RunDir
from harness.atomic import fsync, sha256, write_atomic, write_json
from harness.bundle import BundleError, load
from harness.evolve.journal import Entry, JournalError, digest, read_entries, read_lines
from rollout.buffer_files import DROPPED, MANIFEST, TRAINER, TRAINER_MARKER, Part, ReplayError
from rollout.policy.weights import WeightsError, fingerprint_file
from trainer.checkpoint import verify
from trainer.errors import CheckpointError

STAGES = {"measure": 0, "rollout": 1, "evolve": 2, "train": 2, "publish": 3}
"""Phases of a round in their order; two of one number read nothing of each other's."""

ASIDE = "damaged"
"""Directory of a run to which damaged files, and what was made after them, are moved."""

JOURNAL, METRICS, STATE, LLM = (
    "journal.jsonl", "metrics.jsonl", "state.json", "evolution/llm.jsonl",
)  # fmt: skip
POLICY = ("trainer", "policy")


@dataclass(frozen=True, slots=True)
class Damage:
    """A file (relative to the run) that is not as it was written. key: the phase that wrote it, whose
    entry falls with it; None where none does: the file is derived, or of the phase under way."""

    path: str
    why: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Repair:
    """What `repair` did. last: key of the last phase that stands ("" for none). dropped: keys of those
    that are done again. aside: where the moved files lie."""

    damages: tuple[Damage, ...]
    last: str
    dropped: tuple[str, ...]
    aside: Path


# --- writing ---


def seal(run: RunDir, files: Iterable[Path]) -> dict[str, Any]:
    """path relative to the run → its sha256 and bytes; a harness of the store is its own checksum."""
    return {
        file.relative_to(run.path).as_posix(): {}
        if file.parent == run.bundles
        else {"sha256": sha256(file), "bytes": file.stat().st_size}
        for file in files
    }


def write_summed(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON object with the checksum of the rest of it as `sha256`; atomic."""
    write_json(path, {**value, "sha256": digest(dict(value))})


# --- checking ---


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found. lines: the journal's, up to the first damaged one, each with its entry."""

    lines: tuple[tuple[bytes, Entry], ...]
    damages: tuple[Damage, ...]


def check(run: RunDir, window: int | None) -> Checked:
    """Compare the files of a run with their checksums.

    window: rounds that training reads; then what nothing reads any more is left out: token data,
    traces and evolution of older rounds, older policies. None: everything that is there.
    """
    lines, damages = _journal(run)
    entries = [entry for _, entry in lines]
    newest = max((_place(e.key)[0] for e in entries), default=0)
    version = _version(entries)
    seen: set[str] = set()
    for entry in entries:
        for name, sealed in _files(entry).items():
            if name in seen:
                continue
            seen.add(name)
            depth = _depth(run, name, version, newest, window)
            if depth and (why := _damage(run, name, sealed, depth == "all")):
                damages.append(Damage(name, why, entry.key))
    damages += _unsealed(run, seen)
    return Checked(tuple(lines), tuple(damages))


def _journal(run: RunDir) -> tuple[list[tuple[bytes, Entry]], list[Damage]]:
    """Lines up to the first that is damaged, and what is wrong with that one."""
    file = run.path / JOURNAL
    lines: list[tuple[bytes, Entry]] = []
    if not file.exists():
        return lines, []
    found, torn = read_lines(file)
    for line, entry in found:
        if isinstance(entry, JournalError):
            return lines, [Damage(JOURNAL, str(entry))]
        lines.append((line, entry))
    if b"\0" in torn:  # a kill leaves no zeros
        return lines, [Damage(JOURNAL, f"{file} ends in zeros after line {len(lines)}")]
    return lines, []


def _files(entry: Entry) -> Mapping[str, Any]:
    files: Mapping[str, Any] = entry.result.get("files", {})
    return files


def _place(key: str) -> tuple[int, int]:
    """Where a phase stands in the run; the repeats of best_of_n follow each other."""
    first, _, second = key.partition("/")
    return (int(first), STAGES[second]) if first.isdigit() else (0, int(second))


def _version(entries: Iterable[Entry]) -> int:
    """The policy version after these phases."""
    return max((e.result["version"] for e in entries if e.key.endswith("/train")), default=0)


def _depth(
    run: RunDir, name: str, version: int, newest: int, window: int | None
) -> Literal["", "records", "all"]:
    """How much of a file and of what it describes is hashed."""
    top, number = name.split("/")[:2]
    if top in POLICY:
        # Retention deletes older versions.
        there = window is None and (run.path / name).parent.exists()
        return "all" if there or int(number) == version else ""
    old = window is not None and top in ("rounds", "traces", "evolution")
    if old and int(number) <= newest - (window or 0):
        return "records" if top == "rounds" else ""
    return "all"


def _damage(run: RunDir, name: str, sealed: Mapping[str, Any], deep: bool) -> str:
    """What is wrong with a sealed file or with those that it describes; "" for nothing."""
    path = run.path / name
    if path.name == TRAINER_MARKER and (path.parent / DROPPED).exists():
        return ""
    if not path.exists():
        return f"{path} is missing"
    if path.parent == run.bundles:
        return _bundle(path)
    size = path.stat().st_size
    if size != sealed["bytes"]:
        return f"{path} has {size} bytes, {sealed['bytes']} were written"
    if sha256(path) != sealed["sha256"]:
        return f"{path} is damaged: its sha256 differs from the journal's"
    return _described(path, name.split("/")[0], deep)


def _described(path: Path, top: str, deep: bool) -> str:
    """What is wrong with the files that a whole manifest or marker describes."""
    try:
        if top == "trainer" and path.name == MANIFEST:
            verify(path.parent)
        elif top == "rounds" and path.name == MANIFEST:
            part = Part(path.parent)  # reads and checks the records
            if deep:
                part.check_tokens()
        elif path.name == TRAINER_MARKER:
            Part(path.parent).check_trainer_logprobs()
        elif top == "policy" and path.name.endswith(".safetensors.json"):
            weights = path.with_suffix("")
            if fingerprint_file(weights) != json.loads(path.read_text())["fingerprint"]:
                return f"{weights} is damaged: its fingerprint differs from its marker's"
    except (CheckpointError, ReplayError, WeightsError) as error:
        return str(error)
    return ""


def _bundle(path: Path) -> str:
    try:
        load(path, expect_id=path.name)
    except BundleError as error:
        return f"harness {path.name} is damaged: {error}"
    return ""


def _unsealed(run: RunDir, seen: set[str]) -> Iterator[Damage]:
    """Damage to what no entry lists: derived files, and those of the phase under way."""

    def unseen(paths: Iterable[Path]) -> Iterator[tuple[str, Path]]:
        for path in sorted(paths):
            name = path.relative_to(run.path).as_posix()
            if name not in seen:
                yield name, path

    for name, path in unseen(run.bundles.glob("*")):
        if why := _bundle(path):
            yield Damage(name, why)
    for name, path in unseen(run.buffer.glob(f"*/[!.]*/{MANIFEST}")):
        try:
            part = Part(path.parent)
            part.check_tokens()
            part.check_trainer_logprobs()
        except ReplayError as error:
            yield Damage(name, str(error))
    for name, path in unseen((run.path / "evolution").rglob("*.jsonl")):
        try:
            read_entries(path)
        except JournalError as error:
            yield Damage(name, str(error))
    if (run.path / STATE).exists() and (why := _summed(run.path / STATE)):
        yield Damage(STATE, why)
    if (run.path / METRICS).exists():
        try:
            read_metrics(run.path / METRICS)
        except MetricsError as error:
            yield Damage(METRICS, str(error))


def _summed(path: Path) -> str:
    try:
        value = json.loads(path.read_bytes())
        if value.pop("sha256", None) != digest(value):
            return f"{path} is damaged: its checksum differs"
    except (ValueError, AttributeError, TypeError) as error:
        return f"{path} is damaged: {error}"
    return ""


# --- repairing ---


def repair(run: RunDir, config: RunConfig, say: Callable[[str], None]) -> Repair | None:
    """Check a run that is held; where something is damaged, set the run back and say so.

    None where all is whole, or where an earlier version of this program wrote no checksums. Killed at
    any instant, it does the rest when it is called again: the journal is cut last.
    """
    checked = check(run, config.buffer.window)
    if not checked.damages or any("files" not in e.result for _, e in checked.lines):
        return None
    kept, damages = _kept(run, checked)
    for damage in damages:
        say(f"damaged: {damage.why}")
    aside = run.path / ASIDE / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    stand = {entry.key for _, entry in kept}
    dropped = tuple(entry.key for _, entry in checked.lines if entry.key not in stand)
    cut = bool(dropped) or any(d.path == JOURNAL for d in damages)
    for path in _fallen(run, config, kept, damages, cut):
        _move(run, path, aside)
    if cut:
        _copy(run, run.path / JOURNAL, aside)
        _forget_rounds(run, kept, dropped)
        write_atomic(run.path / JOURNAL, b"".join(line + b"\n" for line, _ in kept))
    if any(d.path == LLM for d in damages):
        # Each of its lines stands for itself: those that are whole stay paid.
        sound = [line for line, e in read_lines(run.path / LLM)[0] if isinstance(e, Entry)]
        _copy(run, run.path / LLM, aside)
        write_atomic(run.path / LLM, b"".join(line + b"\n" for line in sound))
    last = kept[-1][1].key if kept else ""
    for damage in damages:
        events.add(
            run.path, "damaged", file=damage.path, reason=damage.why, used=last or "the run's start",
            redone=list(dropped), aside=aside.relative_to(run.path).as_posix(),
        )  # fmt: skip
    again = f"; done again: {', '.join(dropped)}" if dropped else ""
    say(f"the run goes on after {last or 'its start'}{again}. What was moved aside is in {aside}")
    return Repair(tuple(damages), last, dropped, aside)


def _kept(run: RunDir, checked: Checked) -> tuple[list[tuple[bytes, Entry]], list[Damage]]:
    """The lines that stand, and all damage, that of the policy of the step back included."""
    damages = list(checked.damages)
    while True:
        fallen = {d.key for d in damages if d.key is not None}
        first = min(map(_place, fallen), default=(1 << 62, 0))
        kept = [
            (line, entry)
            for line, entry in checked.lines
            if entry.key not in fallen and _place(entry.key) <= first
        ]
        more = _policy_damage(run, [entry for _, entry in kept])
        if more is None:
            return kept, damages
        damages.append(more)


def _policy_damage(run: RunDir, entries: Sequence[Entry]) -> Damage | None:
    """What is wrong with the policy at which these phases leave the run."""
    version = _version(entries)
    for entry in entries:
        if version and entry.key.endswith("/train") and entry.result["version"] == version:
            for name, sealed in _files(entry).items():
                if name.split("/")[0] in POLICY and (why := _damage(run, name, sealed, True)):
                    return Damage(name, why, entry.key)
    return None


def _fallen(
    run: RunDir,
    config: RunConfig,
    kept: Sequence[tuple[bytes, Entry]],
    damages: Sequence[Damage],
    cut: bool,
) -> Iterator[Path]:
    """What is moved aside: damaged files, and those of phases that are done again."""
    listed = {run.path / name for _, entry in kept for name in _files(entry)}
    under_way = ("rounds/", "evolution/")
    if cut or any(d.path.startswith(under_way) and d.path != LLM for d in damages):
        version = _version(entry for _, entry in kept)
        for unit in (unit for part in POLICY for unit in sorted(run.path.glob(f"{part}/*"))):
            if not unit.name.isdigit() or int(unit.name) > version:
                yield unit
        for pattern in ("rounds/*/[!.]*", "evolution/[0-9]*"):
            for unit in sorted(run.path.glob(pattern)):
                if not any(unit in path.parents for path in listed):
                    yield unit
                elif unit / TRAINER_MARKER not in listed and pattern.startswith("rounds"):
                    yield from (unit / TRAINER_MARKER, unit / TRAINER)
        for pattern in ("traces/*/*.gz", *(f"{s}/*.json" for s in config.evaluation.sizes(True))):
            yield from (path for path in sorted(run.path.glob(pattern)) if path not in listed)
    if cut:
        yield from (run.path / "summary.json", run.path / STATE)
    yield from (run.path / d.path for d in damages if d.path not in (JOURNAL, LLM))


def _move(run: RunDir, path: Path, aside: Path) -> None:
    if not path.exists():  # it went with its directory
        return
    target = aside / path.relative_to(run.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        path.chmod(0o755)  # a harness of the store is read-only, and so cannot be moved
    path.rename(target)
    fsync(path.parent)


def _copy(run: RunDir, path: Path, aside: Path) -> None:
    target = aside / path.relative_to(run.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def _forget_rounds(
    run: RunDir, kept: Sequence[tuple[bytes, Entry]], dropped: Sequence[str]
) -> None:
    """Take the rounds that are done again out of metrics.jsonl."""
    if (run.path / METRICS).exists():
        newest = max((_place(entry.key)[0] for _, entry in kept), default=0)
        # A round may have been rolled out ahead of the one before it.
        first = min([newest - 1, *(_place(key)[0] for key in dropped)])
        with MetricsLog(run.path / METRICS) as log:
            log.truncate_after(first - 1)
