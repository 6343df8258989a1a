"""What evolution remembers from round to round: what was tried, what it did, who is stable."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from harness.component import KINDS
from harness.edit import Edit
from harness.edit_json import to_json
from harness.evolve.journal import digest
from harness.evolve.records import Episode, HistoryRecord

EDIT_KINDS = tuple(kind for kind in KINDS if kind not in ("handbook", "files"))
"""Kinds that an edit can be tried in. `handbook` and `files` are bookkeeping, not behaviour."""

KEEP_RUNS = 8


@dataclass(frozen=True, slots=True)
class Run:
    """One scored run of a task, without its trace."""

    harness_id: str
    success: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """Cross-round memory; every change gives a new one.

    history: judged candidates, oldest first. idle: rounds in a row without a ship. runs: task key
    -> its latest scored runs, oldest first. refused: edit key -> round in which
    a screen refused it.
    """

    history: tuple[HistoryRecord, ...] = ()
    idle: int = 0
    runs: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)

    def observe(self, episodes: Iterable[Episode]) -> Memory:
        """Remember how these episodes ended; infrastructure errors are passed over."""
        runs = dict(self.runs)
        for episode in episodes:
            if episode.scored:
                run = Run(episode.harness_id, episode.success)
                runs[episode.task] = (*runs.get(episode.task, ()), run)
        return replace(self, runs=runs)

    def keep(self, harness_ids: Collection[str]) -> Memory:
        """Forget the runs of other harnesses, and all but the last KEEP_RUNS a task of each."""
        runs: dict[str, tuple[Run, ...]] = {}
        for task, old in self.runs.items():
            left: dict[str, int] = {}
            kept: list[Run] = []
            for run in reversed(old):
                left[run.harness_id] = left.get(run.harness_id, 0) + 1
                if run.harness_id in harness_ids and left[run.harness_id] <= KEEP_RUNS:
                    kept.append(run)
            if kept:
                runs[task] = tuple(reversed(kept))
        return replace(self, runs=runs)

    def judged(self, records: Iterable[HistoryRecord]) -> Memory:
        """Add judged candidates to the history."""
        return replace(self, history=(*self.history, *records))

    def refuse(self, edit_key: str, round: int) -> Memory:
        """Remember an edit that a screen refused."""
        return replace(self, refused={**self.refused, edit_key: round})

    def ended(self, shipped: bool) -> Memory:
        """Count the round: a ship resets patience, anything else uses it up."""
        return replace(self, idle=0 if shipped else self.idle + 1)

    def stable(self, harness_id: str, min_runs: int = 4) -> frozenset[str]:
        """Tasks of which the last `min_runs` runs under this harness all passed."""
        out = set()
        for task, runs in self.runs.items():
            own = [run.success for run in runs if run.harness_id == harness_id]
            if len(own) >= min_runs and all(own[-min_runs:]):
                out.add(task)
        return frozenset(out)

    def spent(self, edit_key: str, now: int, retry_after: int | None = None) -> bool:
        """Whether these edits were refused before; forgiven after `retry_after` rounds, if given."""
        rounds = [
            record.round
            for record in self.history
            if record.edit_key == edit_key and record.decision in ("reject", "no_effect")
        ]
        if edit_key in self.refused:
            rounds.append(self.refused[edit_key])
        return bool(rounds) and (retry_after is None or now - max(rounds) < retry_after)

    def tried(self) -> tuple[str, ...]:
        """Kinds of which at least one edit was judged."""
        return tuple(sorted({kind for record in self._judged() for kind in record.kinds}))

    def untried(self) -> tuple[str, ...]:
        """Kinds of which none was."""
        return tuple(kind for kind in EDIT_KINDS if kind not in self.tried())

    def reputation(self) -> dict[str, float]:
        """kind -> (accepted + 1) / (judged + 2), for tried kinds."""
        out = {}
        for kind in self.tried():
            own = [record for record in self._judged() if kind in record.kinds]
            out[kind] = (sum(record.accepted for record in own) + 1) / (len(own) + 2)
        return out

    def hit_rate(self, kind: str) -> float:
        """Predicted improvements of this kind's judged edits that came true; 1.0 before any."""
        own = [record for record in self._judged() if kind in record.kinds and record.predicted]
        predicted = sum(record.predicted for record in own)
        return sum(record.hits for record in own) / predicted if predicted else 1.0

    def held_back(self, last: int = 3, ships: int = 2, min_hit_rate: float = 0.4) -> list[str]:
        """Kinds that shipped in at least `ships` of the `last` judged rounds with a low hit rate."""
        rounds = sorted({record.round for record in self.history})[-last:]
        out = []
        for kind in self.tried():
            shipped = {
                record.round
                for record in self.history
                if record.accepted and kind in record.kinds and record.round in rounds
            }
            if len(shipped) >= ships and self.hit_rate(kind) < min_hit_rate:
                out.append(kind)
        return out

    def last_regressions(self) -> tuple[str, ...]:
        """Tasks that the candidates of the latest judged round broke, if one of them shipped."""
        if not self.history:
            return ()
        latest = [r for r in self.history if r.round == self.history[-1].round and r.accepted]
        return tuple(sorted({task for record in latest for task in record.regressed}))

    def shipped_for(self, task: str) -> tuple[str, ...]:
        """Ids of shipped candidates that improved or broke the task."""
        return tuple(
            record.candidate_id
            for record in self.history
            if record.accepted and task in (*record.improved, *record.regressed)
        )

    def _judged(self) -> list[HistoryRecord]:
        return [record for record in self.history if record.decision != "deferred"]


def edit_key(edits: Iterable[Edit]) -> str:
    """Equal for equal edits, whatever harness they are made to."""
    return digest(to_json(edits))[:16]
