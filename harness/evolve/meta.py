"""What evolution remembers from round to round: what was tried, what it did, who is stable."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from harness.component import KINDS
from harness.edit import Edit
from harness.edit_json import to_json
from harness.evolve.journal import digest
from harness.evolve.records import Episode, HistoryRecord, PairedResult
from harness.evolve.routing import Routing

EDIT_KINDS = tuple(kind for kind in KINDS if kind not in ("handbook", "files"))
"""Kinds that an edit can be tried in. `handbook` and `files` are bookkeeping, not behaviour."""

KEEP_RUNS = 8

SPENT = ("reject", "no_effect", "fork", "rolled_back")
"""Decisions after which the same edit of the same variant would only end the same way."""

BLAMED = ("apply", "rolled_back")


@dataclass(frozen=True, slots=True)
class Run:
    """One scored run of a task, without its trace."""

    harness_id: str
    success: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """Cross-round memory; every change gives a new one.

    history: judged candidates, oldest first. idle: rounds in a row without a ship. runs: task key
    -> its latest scored runs, oldest first. refused: edit key -> round in which a screen refused
    it. last_try: round and policy version of the last round that was not sat out. attempts: harness
    id -> rounds in which evolution worked on it and shipped nothing. rollouts: that evolution asked
    for so far. since_drift: rounds since the last drift test. routing: see there. scope: the
    variant whose failures count in `spent` and `last_regressions`; "": all.
    """

    history: tuple[HistoryRecord, ...] = ()
    idle: int = 0
    runs: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    last_try: tuple[int, int] | None = None
    attempts: Mapping[str, int] = field(default_factory=dict)
    rollouts: int = 0
    since_drift: int = 0
    routing: Routing = field(default_factory=Routing)
    scope: str = ""

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
        attempts = {id: n for id, n in self.attempts.items() if id in harness_ids}
        return replace(self, runs=runs, attempts=attempts)

    def judged(self, records: Iterable[HistoryRecord]) -> Memory:
        """Add judged candidates to the history."""
        return replace(self, history=(*self.history, *records))

    def refuse(self, edit_key: str, round: int) -> Memory:
        """Remember an edit that a screen refused."""
        return replace(self, refused={**self.refused, edit_key: round})

    def given_up(self, found: Iterable[HistoryRecord], round: int, result: PairedResult) -> Memory:
        """Remember applied edits that the drift test gave up again, with what it measured."""
        worse = tuple(item.task for item in result.tasks if item.d < 0)
        return self.judged(
            replace(
                record,
                round=round,
                decision="rolled_back",
                delta_score=result.mean_d,
                predicted=0,
                hits=0,
                improved=(),
                regressed=worse,
            )
            for record in found
        )

    def ended(self, shipped: bool, harness_id: str = "") -> Memory:
        """Count the round of work on this harness: a ship resets patience, anything else uses it
        up."""
        if shipped:
            return replace(self, idle=0)
        attempts = dict(self.attempts)
        if harness_id:
            attempts[harness_id] = attempts.get(harness_id, 0) + 1
        return replace(self, idle=self.idle + 1, attempts=attempts)

    def of(self, variant: str) -> Memory:
        """The memory as work on this variant sees it: what failed in another's place may help here."""
        return replace(self, scope=variant)

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
            for record in self._own()
            if record.edit_key == edit_key and record.decision in SPENT
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
        """Tasks that the latest judged round broke: by an edit that was applied, or by those that
        the drift test gave up. What a fork breaks stays with its parent."""
        own = self._own()
        if not own:
            return ()
        blamed = [r for r in own if r.round == own[-1].round and r.decision in BLAMED]
        return tuple(sorted({task for record in blamed for task in record.regressed}))

    def led_to(self, harness_id: str, best: str) -> tuple[HistoryRecord, ...]:
        """The applied records that lead from `best` to `harness_id`, oldest first."""
        made = {r.harness_id: r for r in self.history if r.accepted}
        out: list[HistoryRecord] = []
        while harness_id != best and harness_id in made and made[harness_id] not in out:
            out.append(made[harness_id])
            harness_id = made[harness_id].parent
        return tuple(reversed(out))

    def shipped_for(self, task: str) -> tuple[str, ...]:
        """Ids of shipped candidates that improved or broke the task."""
        return tuple(
            record.candidate_id
            for record in self.history
            if record.accepted and task in (*record.improved, *record.regressed)
        )

    def _own(self) -> list[HistoryRecord]:
        return [r for r in self.history if self.scope in ("", r.variant)]

    def _judged(self) -> list[HistoryRecord]:
        return [record for record in self.history if record.decision != "deferred"]


def edit_key(edits: Iterable[Edit]) -> str:
    """Equal for equal edits, whatever harness they are made to."""
    return digest(to_json(edits))[:16]
