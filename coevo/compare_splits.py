"""Success on one split: pooled over runs, by round, and paired between two sets of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coevo import stats
from coevo.records import Evaluation, EvolveResult, RepeatResult, SplitResult, attempts
from coevo.runs import Run

MIN_TASKS = 20
"""Under this many tasks nothing is concluded: the percentile bootstrap is too narrow there (of equal
arms it separates 8% at 10 tasks of 4 repeats, 6% at 20 and 5.5% at 50, where 5% is due)."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Success of `a` minus `b`, paired by run seed, task and episode seed.

    interval: percentile bootstrap, 95% two-sided, over tasks; with several run seeds over these too.
    by_seed: the mean of each run seed. only_a, only_b: discordant pairs. p_mcnemar: exact, its pairs
    taken as independent. dropped: pairs left out because either side had an infrastructure error.
    """

    a: str
    b: str
    interval: stats.PairedBootstrap
    only_a: int
    only_b: int
    p_mcnemar: float
    dropped: int
    by_seed: tuple[tuple[int | None, float], ...] = ()

    @property
    def enough(self) -> bool:
        return self.interval.n_tasks >= MIN_TASKS

    @property
    def conclusion(self) -> str:
        """above, below, within noise, or too few tasks: what the interval lets one say."""
        if not self.enough:
            return "too few tasks"
        if self.interval.lo > 0:
            return "above"
        return "below" if self.interval.hi < 0 else "within noise"


@dataclass(frozen=True, slots=True)
class SplitCurve:
    """Success on one split of an arm's runs, pooled: at the first and the last measurement, and in
    the best round, which is chosen on that same split and so optimistic. gain: last minus first,
    None for the evolve split, whose tasks differ from round to round."""

    split: str
    initial: SplitResult | None
    final: SplitResult | None
    final_round: int | None
    best: SplitResult | None
    best_round: int | None
    gain: PairedDifference | None = None
    repeats: tuple[RepeatResult | None, RepeatResult | None] = (None, None)
    """Of the first and the last measurement."""


_Slot = tuple[int | None, str, int]
"""Run seed, task id, episode seed: what two arms must share for a pair."""


def slots(evaluations: Sequence[tuple[int | None, Evaluation]]) -> dict[_Slot, tuple[bool, bool]]:
    return {
        (seed, e.task_id, e.seed): (e.success, e.scored)
        for seed, evaluation in evaluations
        for e in evaluation.episodes
    }


def paired(
    a: str,
    b: str,
    of_a: Sequence[tuple[int | None, Evaluation]],
    of_b: Sequence[tuple[int | None, Evaluation]],
) -> PairedDifference | None:
    left, right = slots(of_a), slots(of_b)
    shared = sorted(left.keys() & right.keys(), key=repr)
    kept = [s for s in shared if left[s][1] and right[s][1]]
    if not kept:
        return None
    va = np.array([left[s][0] for s in kept], dtype=np.float64)
    vb = np.array([right[s][0] for s in kept], dtype=np.float64)
    seeds = [seed for seed, _, _ in kept]
    only_a, only_b = int((va > vb).sum()), int((vb > va).sum())
    return PairedDifference(
        a=a,
        b=b,
        interval=stats.paired_bootstrap(va, vb, [task for _, task, _ in kept], seeds),
        only_a=only_a,
        only_b=only_b,
        p_mcnemar=stats.mcnemar_exact(only_a, only_b),
        dropped=len(shared) - len(kept),
        by_seed=tuple(
            (seed, float(np.mean([d for d, s in zip(va - vb, seeds, strict=True) if s == seed])))
            for seed in dict.fromkeys(seeds)
        ),
    )


Measurements = Sequence[tuple[int | None, Evaluation]]
"""Run seed and evaluation."""


def pool(measured: Measurements) -> SplitResult | None:
    """Success over all scored episodes, with an interval over tasks and run seeds."""
    if not measured:
        return None
    scored = [(seed, e) for seed, evaluation in measured for e in evaluation.episodes if e.scored]
    values = [float(e.success) for _, e in scored]
    found = stats.clustered_rate(values, [e.task_id for _, e in scored], [s for s, _ in scored])
    return SplitResult(
        n=len(values),
        successes=int(sum(values)),
        success=found.estimate,
        lo=found.lo,
        hi=found.hi,
    )


def _shared(rounds: Sequence[Mapping[int, Any]]) -> list[int]:
    """Rounds that all of them have, in order."""
    return sorted(set.intersection(*(set(r) for r in rounds))) if rounds else []


def _by_round(
    seeds: Sequence[int | None], evaluations: Sequence[Mapping[int, Evaluation]]
) -> dict[int, SplitResult]:
    pooled = {
        r: pool([(seed, own[r]) for seed, own in zip(seeds, evaluations, strict=True)])
        for r in _shared(evaluations)
    }
    return {r: result for r, result in pooled.items() if result is not None}


def by_round(runs: Sequence[Run]) -> dict[int, SplitResult]:
    """Held-out result of each round that every one of `runs` evaluated, pooled over them."""
    return _by_round([run.seed for run in runs], [run.evaluations for run in runs])


def _best(curve: Mapping[int, SplitResult]) -> tuple[int | None, SplitResult | None]:
    """The earliest round wins a tie, so that the best round is not the luckiest repeat of itself."""
    scored = {r: s.success for r, s in curve.items() if s.success is not None}
    best = max(scored, key=lambda r: (scored[r], -r)) if scored else None
    return best, None if best is None else curve[best]


def repeats_of(measured: Measurements) -> RepeatResult | None:
    return RepeatResult.of(
        count for _, evaluation in measured for count in attempts(evaluation.episodes).values()
    )


def curve_of(
    key: str, split: str, seeds: Sequence[int | None], own: Sequence[Mapping[int, Evaluation]]
) -> SplitCurve:
    held = [(seed, found) for seed, found in zip(seeds, own, strict=True) if found]
    firsts = [(seed, found[min(found)]) for seed, found in held]
    lasts = [(seed, found[max(found)]) for seed, found in held]
    best_round, best = _best(_by_round(seeds, own))
    moved = any(a.round != b.round for (_, a), (_, b) in zip(firsts, lasts, strict=True))
    return SplitCurve(
        split=split,
        initial=pool(firsts),
        final=pool(lasts),
        final_round=min((e.round for _, e in lasts), default=None),
        best=best,
        best_round=best_round,
        gain=paired(key, "start", lasts, firsts) if moved else None,
        repeats=(repeats_of(firsts), repeats_of(lasts)),
    )


def evolve_curve(runs: Sequence[Run]) -> SplitCurve | None:
    """Of the rounds' own rollouts."""
    curve: dict[int, SplitResult] = {}
    found: dict[int, list[EvolveResult]] = {}
    own = [{r.round: r.evolve for r in run.rounds if r.evolve.success is not None} for run in runs]
    for number in _shared(own):
        found[number] = [rounds[number] for rounds in own]
        passed = sum(round((e.success or 0.0) * e.n) for e in found[number])
        curve[number] = SplitResult.of(passed, sum(e.n for e in found[number]))
    if not curve:
        return None
    best_round, best = _best(curve)
    first, last = min(curve), max(curve)
    return SplitCurve(
        "evolve", curve[first], curve[last], last, best, best_round,
        repeats=(_mean_repeats(found[first]), _mean_repeats(found[last])),
    )  # fmt: skip


def _mean_repeats(results: Sequence[EvolveResult]) -> RepeatResult | None:
    """The mean over runs whose tasks ran equally often."""
    found = [e.repeats for e in results if e.repeats is not None]
    if len(found) < len(results) or len({r.k for r in found}) != 1:
        return None
    mean = {
        name: float(np.average([getattr(r, name) for r in found], weights=[r.tasks for r in found]))
        for name in ("pass_at_1", "pass_at_k", "pass_hat_k", "flips")
    }
    return RepeatResult(k=found[0].k, tasks=sum(r.tasks for r in found), **mean)
