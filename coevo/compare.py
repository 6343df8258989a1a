"""What the results of several runs say about each other.

`compare` groups runs into arms and pairs them by run seed, task and episode seed. Runs that did not
face the same held-out episodes are refused, not averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coevo.budget import Budget
from coevo.comparable import ARM_NAMES, NotComparableError, check_comparable, flatten, grouped
from coevo.compare_notes import notes_on
from coevo.compare_splits import (
    MIN_TASKS,
    PairedDifference,
    SplitCurve,
    by_round,
    curve_of,
    evolve_curve,
    paired,
)
from coevo.records import Evaluation, RepeatResult, SplitResult, Tokens
from coevo.runs import Run, RunError, load_run

__all__ = [
    "ARM_NAMES",
    "MIN_TASKS",
    "Arm",
    "Comparison",
    "NotComparableError",
    "PairedDifference",
    "Run",
    "RunError",
    "SplitCurve",
    "by_round",
    "compare",
    "flatten",
    "load_run",
]


@dataclass(frozen=True)
class Arm:
    """Runs of one arm (one a seed), pooled. Rates are over all their scored held-out episodes.

    initial … repeats: as in SplitCurve, of the held-out split; gain is thus final against H0·M0.
    others: the evolve split and whatever else was measured. budget: the mean over the runs.
    """

    key: str
    label: str
    mode: str
    runs: tuple[Run, ...]
    initial: SplitResult | None
    final: SplitResult | None
    final_round: int | None
    best_round: int | None
    best: SplitResult | None
    gain: PairedDifference | None
    tokens: Tokens
    wall_s: float
    repeats: tuple[RepeatResult | None, RepeatResult | None]
    others: tuple[SplitCurve, ...]
    budget: Budget

    @property
    def lasts(self) -> list[tuple[int | None, Evaluation]]:
        """Run seed and last held-out evaluation of each run that has one."""
        return [(run.seed, run.last) for run in self.runs if run.last is not None]

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    @property
    def seeds(self) -> tuple[int | None, ...]:
        return tuple(run.seed for run in self.runs)


@dataclass(frozen=True)
class Comparison:
    """Arms in order, and a paired difference for every two of them (later minus earlier)."""

    arms: tuple[Arm, ...]
    pairs: tuple[PairedDifference, ...]
    reference: str
    notes: tuple[str, ...] = field(default=())

    @property
    def baseline(self) -> Arm:
        """The arm whose budget the others are held against: the first that evolves, else the first."""
        evolving = [arm for arm in self.arms if arm.mode in ("harness", "coevolve")]
        return (evolving or self.arms)[0]

    def difference(self, a: str, b: str) -> PairedDifference | None:
        """`a` minus `b` by arm key, when that pair was compared in this direction."""
        return next((p for p in self.pairs if (p.a, p.b) == (a, b)), None)


def _arm(key: str, label: str, runs: tuple[Run, ...]) -> Arm:
    seeds = [run.seed for run in runs]
    own = curve_of(key, "heldout", seeds, [run.evaluations for run in runs])
    repeats = own.repeats
    if all(run.best_of_n is not None for run in runs):
        counts = [c for run in runs if run.best_of_n for c in run.best_of_n.attempts().values()]
        repeats = (repeats[0], RepeatResult.of(counts))
    splits = sorted({split for run in runs for split in run.others})
    others = [evolve_curve(runs)] + [
        curve_of(key, split, seeds, [run.others.get(split, {}) for run in runs]) for split in splits
    ]
    return Arm(
        key=key,
        label=label,
        mode=runs[0].mode,
        runs=runs,
        initial=own.initial,
        final=own.final,
        final_round=own.final_round,
        best_round=own.best_round,
        best=own.best,
        gain=own.gain,
        tokens=Tokens(
            prompt=sum(r.tokens.prompt for r in runs), sampled=sum(r.tokens.sampled for r in runs)
        ),
        wall_s=sum(r.wall_s for r in runs),
        repeats=repeats,
        others=tuple(curve for curve in others if curve is not None),
        budget=Budget.mean([Budget.of(run) for run in runs]),
    )


def compare(runs: Sequence[Run], reference: str | None = None) -> Comparison:
    """Compare runs arm by arm on their last held-out evaluation.

    reference: arm (or run) name that the tables subtract; the first arm when None.
    Raises NotComparableError when the runs differ in SAME_KEYS, run seeds or held-out episodes, and
    ValueError for no runs or an unknown reference.
    """
    if not runs:
        raise ValueError("no runs to compare; give at least one run directory")
    groups = grouped(runs)
    check_comparable(groups)
    arms = tuple(_arm(*group) for group in groups)
    keys = [arm.key for arm in arms]
    if reference is not None and reference not in keys:
        raise ValueError(f"reference is {reference!r}; expected one of {', '.join(keys)}")
    reference = reference or keys[0]
    # The reference leads, so that each difference with it reads "arm minus reference".
    lead = sorted(arms, key=lambda arm: arm.key != reference)
    pairs = []
    for j, later in enumerate(lead):
        for earlier in lead[:j]:
            pair = paired(later.key, earlier.key, later.lasts, earlier.lasts)
            if pair is not None:
                pairs.append(pair)
    return Comparison(
        arms=arms, pairs=tuple(pairs), reference=reference, notes=notes_on(arms, pairs)
    )
