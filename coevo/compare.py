"""What the held-out results of several runs say about each other.

`compare` groups runs into arms and pairs them by run seed, task and episode seed. Runs that did not
face the same held-out episodes are refused, not averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coevo import stats
from coevo.comparable import OWN_KEYS, NotComparableError, check_comparable, differing, flatten
from coevo.live import percent, quantity, with_interval
from coevo.records import Evaluation, SplitResult, Tokens
from coevo.runs import Run, RunError, load_run

__all__ = [
    "ARM_NAMES",
    "Arm",
    "Comparison",
    "NotComparableError",
    "PairedDifference",
    "Run",
    "RunError",
    "by_round",
    "compare",
    "flatten",
    "load_run",
    "points",
    "print_comparison",
]

ARM_NAMES: dict[str, str] = {
    "frozen": "Frozen",
    "harness": "Harness only",
    "model": "Model only",
    "coevolve": "Co-evolution",
    "best_of_n": "Best of n",
}
"""Arms in the order in which they are shown; the first one present is the reference."""

MIN_TASKS = 20
"""Under this many tasks nothing is concluded: the percentile bootstrap is too narrow there (of equal
arms it separates 8% at 10 tasks of 4 repeats, 6% at 20 and 5.5% at 50, where 5% is due)."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Held-out success of `a` minus `b`, paired by run seed, task and episode seed.

    interval: percentile bootstrap over tasks, 95% two-sided. only_a, only_b: discordant pairs.
    dropped: pairs left out because either side had an infrastructure error.
    """

    a: str
    b: str
    interval: stats.PairedBootstrap
    only_a: int
    only_b: int
    p_mcnemar: float
    dropped: int

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


@dataclass(frozen=True)
class Arm:
    """Runs of one arm (one a seed), pooled. Rates are over all their scored held-out episodes.

    best_round, best: the round with the highest held-out success, chosen on that same split and so
    optimistic. gain: last minus first evaluation of the same runs.
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

    def difference(self, a: str, b: str) -> PairedDifference | None:
        """`a` minus `b` by arm key, when that pair was compared in this direction."""
        return next((p for p in self.pairs if (p.a, p.b) == (a, b)), None)


_Slot = tuple[int | None, str, int]
"""Run seed, task id, episode seed: what two arms must share for a pair."""


def _slots(evaluations: Sequence[tuple[int | None, Evaluation]]) -> dict[_Slot, tuple[bool, bool]]:
    return {
        (seed, e.task_id, e.seed): (e.success, e.scored)
        for seed, evaluation in evaluations
        for e in evaluation.episodes
    }


def _paired(
    a: str,
    b: str,
    of_a: Sequence[tuple[int | None, Evaluation]],
    of_b: Sequence[tuple[int | None, Evaluation]],
) -> PairedDifference | None:
    left, right = _slots(of_a), _slots(of_b)
    shared = sorted(left.keys() & right.keys(), key=repr)
    kept = [s for s in shared if left[s][1] and right[s][1]]
    if not kept:
        return None
    va = np.array([left[s][0] for s in kept], dtype=np.float64)
    vb = np.array([right[s][0] for s in kept], dtype=np.float64)
    only_a, only_b = int((va > vb).sum()), int((vb > va).sum())
    return PairedDifference(
        a=a,
        b=b,
        interval=stats.paired_bootstrap(va, vb, [task for _, task, _ in kept]),
        only_a=only_a,
        only_b=only_b,
        p_mcnemar=stats.mcnemar_exact(only_a, only_b),
        dropped=len(shared) - len(kept),
    )


def _pool(evaluations: Sequence[Evaluation]) -> SplitResult | None:
    if not evaluations:
        return None
    results = [e.result for e in evaluations]
    return SplitResult.of(sum(r.successes for r in results), sum(r.n for r in results))


def by_round(runs: Sequence[Run]) -> dict[int, SplitResult]:
    """Held-out result of each round that every one of `runs` evaluated, pooled over them."""
    shared = set.intersection(*(set(run.evaluations) for run in runs)) if runs else set()
    pooled = {r: _pool([run.evaluations[r] for run in runs]) for r in sorted(shared)}
    return {r: result for r, result in pooled.items() if result is not None}


def _arm(key: str, label: str, runs: tuple[Run, ...]) -> Arm:
    curve = {r: s for r, s in by_round(runs).items() if s.success is not None}
    # The earliest round wins a tie, so that the best round is not the luckiest repeat of itself.
    best_round = max(curve, key=lambda r: (curve[r].success or 0.0, -r)) if curve else None
    firsts = [(r.seed, r.first) for r in runs if r.first is not None]
    lasts = [(r.seed, r.last) for r in runs if r.last is not None]
    moved = any(a.round != b.round for (_, a), (_, b) in zip(firsts, lasts, strict=True))
    return Arm(
        key=key,
        label=label,
        mode=runs[0].mode,
        runs=runs,
        initial=_pool([e for _, e in firsts]),
        final=_pool([e for _, e in lasts]),
        final_round=min((e.round for _, e in lasts), default=None),
        best_round=best_round,
        best=curve[best_round] if best_round is not None else None,
        gain=_paired(key, "start", lasts, firsts) if moved else None,
        tokens=Tokens(
            prompt=sum(r.tokens.prompt for r in runs), sampled=sum(r.tokens.sampled for r in runs)
        ),
        wall_s=sum(r.wall_s for r in runs),
    )


def _grouped(runs: Sequence[Run]) -> list[tuple[str, str, tuple[Run, ...]]]:
    """(key, label, runs) an arm; run names instead when an arm holds one seed twice."""
    slots = [(run.arm, run.seed) for run in runs]
    if len(set(slots)) < len(slots):
        names = [run.name for run in runs]
        if len(set(names)) < len(names):
            names = [str(run.path) for run in runs]
        return [(name, name, (run,)) for name, run in zip(names, runs, strict=True)]
    order = {arm: i for i, arm in enumerate(ARM_NAMES)}
    arms = sorted({run.arm for run in runs}, key=lambda arm: (order.get(arm, len(order)), arm))
    return [
        (
            arm,
            ARM_NAMES.get(arm, arm),
            tuple(
                sorted((r for r in runs if r.arm == arm), key=lambda r: (r.seed is None, r.seed))
            ),
        )
        for arm in arms
    ]


def compare(runs: Sequence[Run], reference: str | None = None) -> Comparison:
    """Compare runs arm by arm on their last held-out evaluation.

    reference: arm (or run) name that the tables subtract; the first arm when None.
    Raises NotComparableError when the runs differ in SAME_KEYS, run seeds or held-out episodes, and
    ValueError for no runs or an unknown reference.
    """
    if not runs:
        raise ValueError("no runs to compare; give at least one run directory")
    groups = _grouped(runs)
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
            pair = _paired(later.key, earlier.key, _lasts(later), _lasts(earlier))
            if pair is not None:
                pairs.append(pair)
    return Comparison(arms=arms, pairs=tuple(pairs), reference=reference, notes=_notes(arms, pairs))


def _lasts(arm: Arm) -> list[tuple[int | None, Evaluation]]:
    return [(run.seed, run.last) for run in arm.runs if run.last is not None]


def _notes(arms: Sequence[Arm], pairs: Sequence[PairedDifference]) -> tuple[str, ...]:
    notes = []
    if all(len(arm.runs) == 1 for arm in arms):
        notes.append(
            "One run an arm: the intervals cover which tasks were drawn, not how another training "
            "seed would have ended."
        )
    else:
        notes.append(
            "Runs of an arm are pooled; the bootstrap resamples tasks and takes the run seeds as "
            "given."
        )
    if len(pairs) > 1:
        notes.append(
            f"Each of the {len(pairs)} intervals holds at 95% alone; they are not corrected for "
            "their number."
        )
    notes.extend(_best_of_n(run) for arm in arms for run in arm.runs if run.best_of_n is not None)
    going = [run.name for arm in arms for run in arm.runs if not run.finished]
    if going:
        notes.append(f"Not finished, shown as far as it goes: {', '.join(going)}.")
    measured = [arm for arm in arms if arm.final_round is not None]
    if len({arm.final_round for arm in measured}) > 1:
        ends = ", ".join(f"{arm.label} at round {arm.final_round}" for arm in measured)
        notes.append(f"The arms were last evaluated at different rounds: {ends}.")
    parted = {len(_slots(_lasts(arm))) for arm in arms if arm.final is not None}
    if len(parted) > 1:
        notes.append(
            f"The last evaluations hold {min(parted)} to {max(parted)} episodes; differences use "
            "the episodes that both arms ran."
        )
    runs = [run for arm in arms for run in arm.runs]
    base = flatten(runs[0].config)
    other = {
        key for run in runs[1:] for key, _, _ in differing(base, flatten(run.config))
    } - OWN_KEYS
    if other:
        notes.append(f"The configurations also differ in: {', '.join(sorted(other))}.")
    dropped = sum(pair.dropped for pair in pairs)
    if dropped:
        notes.append(
            f"{dropped} pairs were left out because of an infrastructure error on either side."
        )
    notes.extend(problem for arm in arms for run in arm.runs for problem in run.problems)
    return tuple(notes)


def _best_of_n(run: Run) -> str:
    """What a best-of-n result is, its pass@k, and how far its budget was matched."""
    record = run.best_of_n
    assert record is not None
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k < record.n] + [record.n]
    rates = ", ".join(f"pass@{k} {percent(record.pass_at(k))}" for k in ks)
    text = (
        f"{run.name} ran each held-out task {record.n} times and let the verifier choose: an upper "
        f"bound on choosing. A single run {with_interval(record.single())}; {rates}."
    )
    if record.budget is None:
        return f"{text} {quantity(record.tokens.total)} tokens of repeats, matched to no run."
    gap = record.tokens.total - record.budget
    share = f" ({100 * gap / record.budget:+.1f}%)" if record.budget else ""
    return (
        f"{text} Its repeats took {record.tokens.total:,} tokens; {record.matched} spent "
        f"{record.budget:,} on rollouts and evolution: a difference of {gap:+,}{share}."
    )


def points(value: float) -> str:
    """A difference of shares in percentage points, signed: '+9.5'."""
    return f"{100 * value:+.1f}"


def p_value(p: float) -> str:
    return "p<0.001" if p < 0.001 else f"p={p:.3f}"


def _table(title: str, *columns: str) -> Table:
    """A table narrow enough for 80 columns; interval brackets are no markup."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """The comparison as a table, then every paired difference and the notes."""
    console = console or Console()
    table = _table(
        "Held-out success", "arm", "start", "final, 95%", "n", "best (round)", "tokens", "wall"
    )
    for arm in comparison.arms:
        best = "–" if arm.best is None else f"{percent(arm.best.success)} ({arm.best_round})"
        table.add_row(
            Text(arm.label + ("" if arm.finished else " (unfinished)")),
            percent(arm.initial.success if arm.initial else None),
            Text(with_interval(arm.final)),
            str(arm.final.n) if arm.final else "–",
            best,
            quantity(arm.tokens.total),
            f"{arm.wall_s:.0f} s",
        )
    console.print(table)
    labels = {arm.key: arm.label for arm in comparison.arms}
    if comparison.pairs:
        table = _table(
            "Paired differences, points", "pair", "difference, 95%", "McNemar", "tasks", "reading"
        )
        for pair in comparison.pairs:
            table.add_row(
                Text(f"{labels[pair.a]} − {labels[pair.b]}"),
                Text(
                    f"{points(pair.interval.mean)} "
                    f"[{points(pair.interval.lo)}, {points(pair.interval.hi)}]"
                ),
                p_value(pair.p_mcnemar),
                str(pair.interval.n_tasks),
                pair.conclusion,
            )
        console.print(table)
    for note in comparison.notes:
        console.print(Text(note, style="dim"))
