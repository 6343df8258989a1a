"""A comparison as tables for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coevo.budget import Budget
from coevo.compare import Arm, Comparison, PairedDifference, by_round
from coevo.live import p_value, percent, points, quantity, with_interval
from coevo.records import SplitResult

_BARS = "▁▂▃▄▅▆▇█"


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Held-out success, further splits, repeats, every paired difference, cost, and the notes."""
    console = console or Console()
    tables = [
        _heldout(comparison),
        _others(comparison),
        _repeats(comparison),
        *_gains(comparison),
        _pairs(comparison),
        _cost(comparison),
    ]
    for table in tables:
        if table.row_count:
            console.print(table)
    for note in comparison.notes:
        console.print(Text(note, style="dim"))


def difference_text(pair: PairedDifference) -> str:
    """'+9.5 [+3.0, +16.0]', in percentage points."""
    i = pair.interval
    return f"{points(i.mean)} [{points(i.lo)}, {points(i.hi)}]"


def by_seed_text(pair: PairedDifference) -> str:
    """The differences of the run seeds, in points, their range where there are many; '–' for one."""
    means = [mean for _, mean in pair.by_seed]
    if len(means) < 2:
        return "–"
    if len(means) > 3:
        return f"{points(min(means))} to {points(max(means))}"
    return " ".join(map(points, means))


def per_point(spent: float | None, gain: PairedDifference | None) -> float | None:
    """What a point of held-out success gained over H0·M0 took; None where no gain is beyond noise."""
    if spent is None or gain is None or gain.conclusion != "above":
        return None
    return spent / (100 * gain.interval.mean)


def budget_rows(comparison: Comparison) -> list[tuple[Arm, Budget, dict[str, float | None]]]:
    """Each arm, its budget a run, and how far that is from the baseline's."""
    base = comparison.baseline.budget
    return [(arm, arm.budget, arm.budget.over(base)) for arm in comparison.arms]


def amount(value: float | None, over: float | None, unit: str = "") -> str:
    """'1.55M (+3.8%)'."""
    if value is None:
        return "–"
    share = f" ({over:+.0%})" if over is not None and round(100 * over) else ""
    return f"{quantity(value)}{unit}{share}"


def _table(title: str, *columns: str) -> Table:
    """Interval brackets are no markup."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


def _best(result: SplitResult | None, number: int | None) -> str:
    return "–" if result is None else f"{percent(result.success)} ({number})"


def _heldout(comparison: Comparison) -> Table:
    table = _table(
        "Held-out success", "arm", "start", "final, 95%", "n", "best (round)", "by round"
    )
    curves = [[r.success for r in by_round(arm.runs).values()] for arm in comparison.arms]
    top = max((share or 0.0 for curve in curves for share in curve), default=0.0)
    for arm, curve in zip(comparison.arms, curves, strict=True):
        table.add_row(
            Text(arm.label + ("" if arm.finished else " (unfinished)")),
            percent(arm.initial.success if arm.initial else None),
            Text(with_interval(arm.final)),
            str(arm.final.n) if arm.final else "–",
            _best(arm.best, arm.best_round),
            spark(curve, top),
        )
    return table


def spark(shares: Sequence[float | None], top: float, width: int = 16) -> str:
    """A learning curve from 0 to `top`, one bar a round, evenly thinned to `width`."""
    if len(shares) > width:
        shares = [shares[round(i * (len(shares) - 1) / (width - 1))] for i in range(width)]
    last = len(_BARS) - 1
    return "".join("·" if s is None else _BARS[round(last * s / top) if top else 0] for s in shares)


def _others(comparison: Comparison) -> Table:
    table = _table("Other splits", "arm", "split", "start", "final, 95%", "n", "best (round)")
    for arm in comparison.arms:
        for curve in arm.others:
            table.add_row(
                Text(arm.label),
                curve.split,
                percent(curve.initial.success if curve.initial else None),
                Text(with_interval(curve.final)),
                str(curve.final.n) if curve.final else "–",
                _best(curve.best, curve.best_round),
            )
    return table


def _repeats(comparison: Comparison) -> Table:
    table = _table(
        "Tasks that ran k times, last measured", "arm", "split", "k", "pass@1", "pass@k", "pass^k",
        "flipping", "tasks",
    )  # fmt: skip
    for arm in comparison.arms:
        measured = [("heldout", arm.repeats[1]), *((c.split, c.repeats[1]) for c in arm.others)]
        for split, found in measured:
            if found is not None:
                shares = (found.pass_at_1, found.pass_at_k, found.pass_hat_k, found.flips)
                table.add_row(
                    Text(arm.label), split, str(found.k), *map(percent, shares), str(found.tasks)
                )
    return table


def _gains(comparison: Comparison) -> list[Table]:
    """One table a split."""
    tables: dict[str, Table] = {}
    for arm in comparison.arms:
        for split, gain in [("heldout", arm.gain), *((c.split, c.gain) for c in arm.others)]:
            if gain is None:
                continue
            if split not in tables:
                tables[split] = _table(
                    f"Final against H0·M0, {split}, points", "arm", "difference, 95%", "McNemar",
                    "by seed", "reading",
                )  # fmt: skip
            tables[split].add_row(
                Text(arm.label),
                Text(difference_text(gain)),
                p_value(gain.p_mcnemar),
                by_seed_text(gain),
                gain.conclusion,
            )
    return list(tables.values())


def _pairs(comparison: Comparison) -> Table:
    labels = {arm.key: arm.label for arm in comparison.arms}
    tasks = sorted({pair.interval.n_tasks for pair in comparison.pairs})
    over = f"{tasks[0]} to {tasks[-1]}" if len(tasks) > 1 else "".join(map(str, tasks))
    table = _table(
        f"Paired differences, {over} held-out tasks, points", "pair", "difference, 95%",
        "McNemar", "reading",
    )  # fmt: skip
    for pair in comparison.pairs:
        table.add_row(
            Text(f"{labels[pair.a]} − {labels[pair.b]}"),
            Text(difference_text(pair)),
            p_value(pair.p_mcnemar),
            pair.conclusion,
        )
    return table


def _cost(comparison: Comparison) -> Table:
    """In brackets the difference to the baseline."""
    columns = ["arm", "tasks", "episodes", "tokens", "wall"]
    gpus = any(arm.budget.gpu_s for arm in comparison.arms)
    columns += ["GPU s"] if gpus else []
    title = f"Spent on learning, a run (against {comparison.baseline.label})"
    table = _table(title, *columns, "a point gained")
    for arm, spent, over in budget_rows(comparison):
        tokens, seconds = per_point(spent.tokens, arm.gain), per_point(spent.wall_s, arm.gain)
        point = [f"{quantity(tokens)} tok"] if tokens is not None else []
        point += [f"{quantity(seconds)} s"] if seconds is not None else []
        if gpus and (held := per_point(spent.gpu_s, arm.gain)) is not None:
            point.append(f"{quantity(held)} GPU s")
        cells = [
            amount(spent.tasks, over["tasks"]),
            amount(spent.episodes, over["episodes"]),
            amount(spent.tokens, over["tokens"]),
            amount(spent.wall_s, None, " s"),
        ]
        cells += [amount(spent.gpu_s, None)] if gpus else []
        table.add_row(Text(arm.label), *cells, ", ".join(point) or "–")
    return table
