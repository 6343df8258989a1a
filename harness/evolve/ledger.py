"""The attribution ledger: what every candidate's manifest predicted against what happened.

Source: HarnessX §4 (attribution; the critic's portfolio rule). Pure: from judged candidates and the
runs of incumbents to outcomes, hit rates, kinds held back, and how edits concentrate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.edit import Edit
from harness.evolve.meta import Memory, edit_key
from harness.evolve.records import HistoryRecord, Manifest, PairedResult, Verdict

if TYPE_CHECKING:
    from harness.evolve.state import CandidateReport


@dataclass(frozen=True, slots=True)
class Judged:
    """One candidate of a round, without its bundle."""

    round: int
    candidate_id: str
    harness_id: str
    parent: str
    edits: tuple[Edit, ...]
    manifest: Manifest
    verdict: Verdict
    select: PairedResult | None = None
    confirm: PairedResult | None = None

    @classmethod
    def of(cls, round: int, report: CandidateReport) -> Judged:
        candidate = report.candidate
        return cls(
            round,
            candidate.candidate_id,
            candidate.harness_id,
            candidate.parent,
            candidate.edits,
            candidate.manifest,
            report.verdict,
            report.select,
            report.confirm,
        )

    @property
    def shipped(self) -> bool:
        return self.verdict.decision in ("apply", "fork")

    @property
    def draws(self) -> tuple[PairedResult, ...]:
        return tuple(draw for draw in (self.select, self.confirm) if draw is not None)


@dataclass(frozen=True, slots=True)
class IncumbentRun:
    """One scored run of an incumbent in a round's own rollouts."""

    round: int
    task: str
    harness_id: str
    success: bool


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Task keys, sorted, by what became of them.

    unlocked: none of the runs before passed, some after. stabilised: some passed before, more
    after. regressed: fewer after. unchanged: neither.
    """

    unlocked: tuple[str, ...] = ()
    stabilised: tuple[str, ...] = ()
    regressed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()

    @property
    def improved(self) -> tuple[str, ...]:
        return tuple(sorted((*self.unlocked, *self.stabilised)))

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(sorted((*self.improved, *self.regressed, *self.unchanged)))


@dataclass(frozen=True, slots=True)
class Attribution:
    """A manifest's predictions against outcomes, over the tasks that were observed.

    hits: predicted to improve, and did. missed: predicted, and did not. unpredicted: improved
    without a prediction. risk_met: named at risk, and regressed. surprises: regressed unnamed.
    """

    outcomes: Outcomes
    hits: tuple[str, ...]
    missed: tuple[str, ...]
    unpredicted: tuple[str, ...]
    risk_met: tuple[str, ...]
    surprises: tuple[str, ...]

    @property
    def predicted(self) -> int:
        return len(self.hits) + len(self.missed)

    @property
    def hit_rate(self) -> float | None:
        """None where nothing predicted was observed."""
        return len(self.hits) / self.predicted if self.predicted else None


@dataclass(frozen=True, slots=True)
class Entry:
    """One candidate in the ledger.

    gate: in its own paired draws. later: for a shipped one, in the rounds after it, as far as the
    same tasks came again (None: not shipped, or none did); other edits and new weights share in it.
    """

    candidate: Judged
    gate: Attribution
    later: Attribution | None = None


@dataclass(frozen=True, slots=True)
class KindRecord:
    """One kind of edit. judged, shipped: candidates. predicted, hits: tasks, in the gate's draws.

    hit_rate: None before any prediction. reputation: (shipped + 1) / (judged + 2). held_back: by
    the portfolio rule, it may not ship now.
    """

    kind: str
    judged: int
    shipped: int
    predicted: int
    hits: int
    hit_rate: float | None
    reputation: float
    held_back: bool


@dataclass(frozen=True, slots=True)
class Concentration:
    """How a set of edits spreads over kinds. shares: kind -> share, largest first; a candidate of
    several kinds counts in equal parts. hhi: Σ share², 1 when all are of one kind, 0 for none."""

    shares: Mapping[str, float]
    hhi: float

    @property
    def top(self) -> str:
        return next(iter(self.shares), "")


@dataclass(frozen=True, slots=True)
class Ledger:
    """All candidates with numbers, oldest first, and what they say of the kinds of edit."""

    entries: tuple[Entry, ...]
    kinds: tuple[KindRecord, ...]
    proposed: Concentration
    shipped: Concentration


def ledger(judged: Iterable[Judged], runs: Iterable[IncumbentRun]) -> Ledger:
    """The ledger of a run. Candidates that no draw measured are left out of its entries.

    runs: every scored incumbent run of every round; infrastructure errors are not among them.
    """
    everyone = sorted(judged, key=lambda item: (item.round, item.candidate_id))
    measured = [item for item in everyone if item.draws]
    before = tuple(runs)
    parents = {item.harness_id: item.parent for item in everyone}
    entries = tuple(
        Entry(
            item,
            attribute(item.manifest, gate_outcomes(item.draws)),
            _aftermath(item, before, parents),
        )
        for item in measured
    )
    memory = Memory(history=tuple(history_record(item) for item in measured))
    return Ledger(
        entries,
        _kinds(memory),
        concentration(item.manifest.kinds for item in everyone),
        concentration(item.manifest.kinds for item in everyone if item.shipped),
    )


def gate_outcomes(draws: Sequence[PairedResult]) -> Outcomes:
    """What became of the tasks of a candidate's paired draws.

    A task improved (regressed) when the candidate passed more (fewer) of its pairs than the
    incumbent in every draw: with a confirm draw that is I of the gate's rule. Unlocked or
    stabilised by the incumbent's runs of all draws.
    """
    if not draws:
        return Outcomes()
    shared = set.intersection(*({item.task for item in draw.tasks} for draw in draws))
    found: dict[str, list[str]] = defaultdict(list)
    for task in sorted(shared):
        pairs = [next(item for item in draw.tasks if item.task == task) for draw in draws]
        if all(item.d > 0 for item in pairs):
            passed = any(item.incumbent > 0 for item in pairs)
            found["stabilised" if passed else "unlocked"].append(task)
        elif all(item.d < 0 for item in pairs):
            found["regressed"].append(task)
        else:
            found["unchanged"].append(task)
    return _outcomes(found)


def later_outcomes(
    before: Mapping[str, Sequence[bool]], after: Mapping[str, Sequence[bool]]
) -> Outcomes:
    """What became of the tasks that ran on both sides of an edit; task -> successes."""
    found: dict[str, list[str]] = defaultdict(list)
    for task in sorted(set(before) & set(after)):
        old, new = (sum(runs[task]) / len(runs[task]) for runs in (before, after))
        if new > old:
            found["stabilised" if old > 0 else "unlocked"].append(task)
        else:
            found["regressed" if new < old else "unchanged"].append(task)
    return _outcomes(found)


def attribute(manifest: Manifest, outcomes: Outcomes) -> Attribution:
    """The predictions of a manifest against outcomes; tasks that were not observed say nothing."""
    impact = manifest.predicted_impact
    seen, improved = set(outcomes.tasks), set(outcomes.improved)
    predicted = {*impact.will_unlock, *impact.will_stabilise} & seen
    regressed, at_risk = set(outcomes.regressed), set(impact.at_risk)
    return Attribution(
        outcomes,
        hits=tuple(sorted(predicted & improved)),
        missed=tuple(sorted(predicted - improved)),
        unpredicted=tuple(sorted(improved - predicted)),
        risk_met=tuple(sorted(regressed & at_risk)),
        surprises=tuple(sorted(regressed - at_risk)),
    )


def history_record(item: Judged) -> HistoryRecord:
    """What evolution remembers of a judged candidate.

    Of an edit without effect no prediction came true: what improved beside it was chance."""
    result = item.confirm or item.select
    gate = attribute(item.manifest, gate_outcomes(item.draws))
    cost = None
    if result and result.incumbent_tokens > 0:
        cost = result.candidate_tokens / result.incumbent_tokens - 1
    return HistoryRecord(
        round=item.round,
        candidate_id=item.candidate_id,
        harness_id=item.harness_id,
        parent=item.parent,
        kinds=item.manifest.kinds,
        hypothesis=item.manifest.root_cause,
        edit_key=edit_key(item.edits),
        decision=item.verdict.decision,
        delta_score=result.mean_d if result else None,
        delta_cost=cost,
        predicted=gate.predicted,
        hits=len(gate.hits) if item.verdict.decision != "no_effect" else 0,
        improved=item.verdict.improved,
        regressed=item.verdict.regressed,
    )


def concentration(kinds: Iterable[Sequence[str]]) -> Concentration:
    """Of candidates, each given by the kinds that its diff touches."""
    weights: dict[str, float] = defaultdict(float)
    for touched in kinds:
        for kind in touched:
            weights[kind] += 1 / len(touched)
    total = sum(weights.values())
    ranked = sorted(weights.items(), key=lambda item: (-item[1], item[0]))
    shares = {kind: weight / total for kind, weight in ranked}
    return Concentration(shares, sum(share**2 for share in shares.values()))


def _kinds(memory: Memory) -> tuple[KindRecord, ...]:
    """Every kind that was judged, most judged first; the rates and the rule are the memory's own."""
    held, reputation = memory.held_back(), memory.reputation()
    rows = []
    for kind in memory.tried():
        own = [r for r in memory.history if kind in r.kinds and r.decision != "deferred"]
        predicted = sum(record.predicted for record in own)
        rows.append(
            KindRecord(
                kind,
                judged=len(own),
                shipped=sum(record.accepted for record in own),
                predicted=predicted,
                hits=sum(record.hits for record in own),
                hit_rate=memory.hit_rate(kind) if predicted else None,
                reputation=reputation[kind],
                held_back=kind in held,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.judged, row.kind)))


def _aftermath(
    item: Judged, runs: Sequence[IncumbentRun], parents: Mapping[str, str]
) -> Attribution | None:
    """Later rounds under the candidate's harness or what grew from it, against the rounds up to its
    own under its parent."""
    if not item.shipped:
        return None
    before: dict[str, list[bool]] = defaultdict(list)
    after: dict[str, list[bool]] = defaultdict(list)
    for run in runs:
        if run.round <= item.round and run.harness_id == item.parent:
            before[run.task].append(run.success)
        elif run.round > item.round and _grew_from(run.harness_id, item.harness_id, parents):
            after[run.task].append(run.success)
    outcomes = later_outcomes(before, after)
    return attribute(item.manifest, outcomes) if outcomes.tasks else None


def _grew_from(harness_id: str, ancestor: str, parents: Mapping[str, str]) -> bool:
    seen = set()
    while harness_id != ancestor:
        # An edit and its inverse lead back to a bundle that stood before.
        if harness_id in seen or harness_id not in parents:
            return False
        seen.add(harness_id)
        harness_id = parents[harness_id]
    return True


def _outcomes(found: Mapping[str, Sequence[str]]) -> Outcomes:
    return Outcomes(**{name: tuple(tasks) for name, tasks in found.items()})
