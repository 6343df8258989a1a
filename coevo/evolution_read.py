"""A run's evolution read back from disk: its rounds, candidates and ledger, damaged files named."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from coevo.errors import InputError
from coevo.records import EvolutionRecord, LLMRecord
from coevo.runs import Run, load_run
from harness.bundle import Bundle, BundleError, load
from harness.change import render_diff
from harness.edit import EditError
from harness.edit_json import from_json
from harness.evolve.drift import DriftReport
from harness.evolve.journal import read_entries
from harness.evolve.ledger import IncumbentRun, Judged, Ledger, ledger
from harness.evolve.parts import ScreenResult
from harness.evolve.records import (
    Digest,
    Episode,
    Landscape,
    Manifest,
    PairedResult,
    RecordError,
    Verdict,
    decode,
)

T = TypeVar("T")
UNDECIDED = "undecided"
"""The outcome of a round that has evolution on disk but no verdicts yet."""


@dataclass(frozen=True, slots=True)
class Spent:
    """rollouts, tokens: by purpose (prompt and sampled tokens of the policy). llm: what language
    models of the evolution roles took, as committed rounds record it; None where none was asked."""

    rollouts: Mapping[str, int] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    llm: LLMRecord | None = None

    def __add__(self, other: Spent) -> Spent:
        llm = [item for item in (self.llm, other.llm) if item is not None]
        return Spent(
            dict(Counter(self.rollouts) + Counter(other.rollouts)),
            dict(Counter(self.tokens) + Counter(other.tokens)),
            LLMRecord(**{k: sum(getattr(m, k) for m in llm) for k in LLMRecord.model_fields})
            if llm
            else None,
        )


@dataclass(frozen=True, slots=True)
class CandidateView:
    """A candidate with its screens. diff: its structural difference from its parent, as text."""

    judged: Judged
    source: str
    screens: Mapping[str, ScreenResult]
    diff: str


@dataclass(frozen=True, slots=True)
class RoundView:
    """One round of evolution. variant: the one worked on. steps: what its journal holds, key ->
    how often. incumbent: runs and successes of the round's own rollouts, None where they are not
    there yet."""

    number: int
    outcome: str
    reason: str
    digest: Digest | None = None
    landscape: Landscape | None = None
    candidates: tuple[CandidateView, ...] = ()
    variant: str = "main"
    drift: tuple[DriftReport, ...] = ()
    recorded: EvolutionRecord | None = None
    spent: Spent = Spent()
    steps: Mapping[str, int] = field(default_factory=dict)
    incumbent: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class EvolutionView:
    """A run's evolution as it stands. problems: files that could not be read, with the reason."""

    run: Run
    rounds: tuple[RoundView, ...]
    ledger: Ledger
    problems: tuple[str, ...]

    def round(self, number: int) -> RoundView:
        """Raises InputError naming the rounds that there are."""
        for item in self.rounds:
            if item.number == number:
                return item
        known = ", ".join(str(item.number) for item in self.rounds) or "none yet"
        raise InputError(f"{self.run.path} has no round {number}; it has {known}")

    @property
    def spent(self) -> Spent:
        return sum((item.spent for item in self.rounds), Spent())


def read_evolution(path: Path | str) -> EvolutionView:
    """Read a run's evolution. A damaged file is named in `problems` and the rest is kept.

    Raises coevo.runs.RunError when there is no run at `path`. Changes nothing on disk, so that a
    run that is going may be read.
    """
    run = load_run(path)
    reader = _Reader(run)
    runs = reader.incumbent_runs()
    numbers = {record.round for record in run.rounds} | {item.round for item in runs}
    numbers |= {
        int(found.name) for found in (run.path / "evolution").glob("[0-9]*") if found.is_dir()
    }
    rounds = []
    for number in sorted(numbers):
        own = [item.success for item in runs if item.round == number]
        found = reader.round(number)
        rounds.append(replace(found, incumbent=(len(own), sum(own)) if own else None))
    judged = [item.judged for found in rounds for item in found.candidates]
    return EvolutionView(run, tuple(rounds), ledger(judged, runs), tuple(reader.problems))


class _Reader:
    def __init__(self, run: Run) -> None:
        self.run = run
        self.problems = list(run.problems)
        self.recorded = {record.round: record.evolution for record in run.rounds}

    def incumbent_runs(self) -> list[IncumbentRun]:
        """The scored runs of every round's own rollouts."""
        out: list[IncumbentRun] = []
        for key, result in self._entries(self.run.path / "journal.jsonl"):
            number, _, phase = key.partition("/")
            if phase == "rollout":
                episodes = self._read(
                    self.run.path / "journal.jsonl", _episodes, result.get("episodes", ())
                )
                out += [
                    IncumbentRun(int(number), item.task, item.harness_id, item.success)
                    for item in episodes or ()
                    if item.scored
                ]
        return out

    def round(self, number: int) -> RoundView:
        directory = self.run.path / "evolution" / f"{number:04d}"
        entries = self._entries(directory / "journal.jsonl")
        spent = _spent(entries)
        steps = Counter(key.split("/")[1] for key, _ in entries if "/" in key)
        recorded = self.recorded.get(number)
        if recorded is not None and recorded.llm is not None:
            spent = replace(spent, llm=recorded.llm)
        file = directory / "verdicts.json"
        data = self._read(file, _json) if file.exists() else None
        if data is None and recorded is None:
            reason = "no verdicts yet: the round is going, or was interrupted"
            return RoundView(number, UNDECIDED, reason, spent=spent, steps=steps)
        if data is None:
            assert recorded is not None
            return RoundView(
                number, recorded.outcome, recorded.reason, recorded=recorded, spent=spent, steps=steps
            )  # fmt: skip
        found = self._read(file, _verdicts, number, data)
        if found is None:
            outcome = recorded.outcome if recorded else UNDECIDED
            reason = recorded.reason if recorded else "its verdicts cannot be read"
            return RoundView(number, outcome, reason, recorded=recorded, spent=spent, steps=steps)
        candidates = tuple(replace(c, diff=self._diff(c.judged)) for c in found.candidates)
        return replace(
            found, candidates=candidates, recorded=recorded, spent=spent, steps=steps
        )  # fmt: skip

    def _entries(self, path: Path) -> list[tuple[str, Any]]:
        if not path.exists():
            return []
        found = self._read(path, read_entries, path)
        return [(entry.key, entry.result) for entry in found[0]] if found else []

    def _diff(self, judged: Judged) -> str:
        """Empty where a bundle cannot be read."""
        a, b = self._bundle(judged.parent), self._bundle(judged.harness_id)
        return render_diff(a, b) if a is not None and b is not None else ""

    def _bundle(self, harness_id: str) -> Bundle | None:
        path = self.run.path / "harness" / "objects" / harness_id
        try:
            return load(path, expect_id=harness_id)
        except BundleError as error:
            self._problem(path, str(error))
            return None

    def _read(self, path: Path, parse: Callable[..., T], *args: Any) -> T | None:
        try:
            return parse(*(args or (path,)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EditError) as error:
            kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__} "
            self._problem(path, f"{kind}{error}")
            return None

    def _problem(self, path: Path, why: str) -> None:
        text = why if str(path) in why else f"{path}: {why}"
        if text not in self.problems:
            self.problems.append(text)


def _json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _episodes(records: Any) -> list[Episode]:
    return [decode(Episode, item) for item in records]


def _verdicts(number: int, data: Any) -> RoundView:
    """A round's `verdicts.json`, diffs left out. Raises what a damaged one does."""
    if not isinstance(data, Mapping):
        raise RecordError(f"holds {type(data).__name__}; expected the verdicts of a round")
    return RoundView(
        number,
        data["outcome"],
        data["reason"],
        decode(Digest, data["digest"]) if data["digest"] else None,
        decode(Landscape, data["landscape"]) if data["landscape"] else None,
        tuple(_candidate(number, item) for item in data["candidates"]),
        data.get("variant", "main"),
        tuple(decode(DriftReport, item) for item in data.get("drift", ())),
    )


def _candidate(number: int, data: Mapping[str, Any]) -> CandidateView:
    candidate = data["candidate"]
    judged = Judged(
        number,
        candidate["candidate_id"],
        candidate["harness_id"],
        candidate["parent"],
        from_json(candidate["edits"]),
        decode(Manifest, candidate["manifest"]),
        decode(Verdict, data["verdict"]),
        decode(PairedResult, data["select"]) if data["select"] else None,
        decode(PairedResult, data["confirm"]) if data["confirm"] else None,
    )
    screens = {
        name: ScreenResult(item["ok"], item["note"]) for name, item in data["screens"].items()
    }
    return CandidateView(judged, candidate["source"], screens, "")


def _spent(entries: list[tuple[str, Any]]) -> Spent:
    """From a round's journal, whose rollouts stand under ROUND/PURPOSE/DRAW/HARNESSES."""
    rollouts: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for key, result in entries:
        parts = key.split("/")
        if len(parts) == 4 and isinstance(result, list):
            rollouts[parts[1]] += len(result)
            tokens[parts[1]] += sum(episode.get("tokens", 0) for episode in result)
    return Spent(dict(rollouts), dict(tokens))
