"""The live view of a run in a terminal: progress bars and a table of rounds.

On a terminal it redraws in place; anywhere else (a file, a pipe, a Slurm log) it prints one plain
line a round, without control characters.
"""

from __future__ import annotations

from types import TracebackType
from typing import Literal, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from coevo.records import RoundRecord, SplitResult

Phase = Literal["rollout", "evolve", "train", "publish", "heldout"]
PHASE_NAMES: dict[Phase, str] = {
    "rollout": "rollout",
    "evolve": "evolve",
    "train": "train",
    "publish": "publish",
    "heldout": "held-out",
}

_OUTCOME_STYLE = {"applied": "green", "forked": "green", "rejected": "yellow"}
_CHROME_LINES = 12
"""Lines the title, header, borders and bars take beside the rows of the table."""


def short(identifier: str) -> str:
    """The first eight characters of a hash, the way ids are shown everywhere."""
    return identifier[:8]


def quantity(n: float) -> str:
    """A count in three figures: 950, 12.3k, 4.56M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return f"{n:.0f}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}%"


def with_interval(result: SplitResult | None) -> str:
    """'51.5% [44.6, 58.3]': success with its 95% interval."""
    if result is None or result.success is None:
        return "–"
    return f"{percent(result.success)} [{100 * result.lo:.1f}, {100 * result.hi:.1f}]"


def points(value: float) -> str:
    """A difference of shares in percentage points, signed: '+9.5'."""
    return f"{100 * value:+.1f}"


def p_value(p: float) -> str:
    return "p<0.001" if p < 0.001 else f"p={p:.3f}"


def staleness_text(record: RoundRecord) -> str:
    """Mean and greatest age, in policy versions, of what trained."""
    histogram = record.staleness.histogram
    total = sum(histogram.values())
    if not total:
        return "–"
    mean = sum(int(age) * count for age, count in histogram.items()) / total
    return f"{mean:.1f} (max {record.staleness.max})"


def outcomes_text(record: RoundRecord) -> str:
    """Episodes of the round by outcome class, and the length bias at half of the phase."""
    counts = sorted(record.rollout.outcomes.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{count} {outcome}" for outcome, count in counts)
    bias = record.rollout.length_bias.get("0.5")
    return f"{text} (length bias {bias:.2f} at half)" if bias is not None else text


def verdict_text(record: RoundRecord) -> str:
    """Outcome of the round's evolution, with the edits applied or the number of candidates."""
    evolution = record.evolution
    applied = [c for c in evolution.candidates if c.verdict in ("apply", "applied", "fork")]
    if applied:
        return f"{evolution.outcome}: {'; '.join(e for c in applied for e in c.edits)}"
    if evolution.candidates:
        n = len(evolution.candidates)
        return f"{evolution.outcome} ({n} candidate{'s' if n > 1 else ''})"
    return evolution.outcome


def round_line(record: RoundRecord, rounds: int | None = None) -> str:
    """One plain line that says what a round did."""
    of = f"/{rounds}" if rounds is not None else ""
    heldout = record.heldout
    parts = [
        f"round {record.round}{of}",
        f"harness {short(record.harness_id)}",
        f"policy v{record.policy_version}",
        f"evolve {percent(record.evolve.success)} (n={record.evolve.n})",
        f"held-out {with_interval(heldout)}" + (f" (n={heldout.n})" if heldout else ""),
        *([f"episodes {outcomes_text(record)}"] if record.rollout.outcomes else []),
        f"tokens {quantity(record.tokens.prompt)}+{quantity(record.tokens.sampled)}",
        f"staleness {staleness_text(record)}",
        f"evolution {verdict_text(record)}",
        f"{record.wall.total:.1f} s",
    ]
    return " · ".join(parts)


class LiveTable:
    """Context manager that shows a run: `start`, `advance` and `finish` a phase, `add` a round.

    rounds: how many the run will have, if known. title: heads the table. live: redraw in place;
    None decides by the console. Safe to call from the driver's thread only.
    """

    def __init__(
        self,
        rounds: int | None = None,
        title: str = "",
        *,
        console: Console | None = None,
        live: bool | None = None,
    ) -> None:
        self.console = console or Console()
        # A CI that forces colour is still not a place to redraw: ask the file itself.
        self.redraws = (
            self.console.is_terminal
            and not self.console.is_dumb_terminal
            and self.console.file.isatty()
            if live is None
            else live
        )
        self.rounds = rounds
        self.title = title
        self._records: list[RoundRecord] = []
        self._tasks: dict[Phase, TaskID] = {}
        self._live: Live | None = None
        self._progress = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )

    def __enter__(self) -> Self:
        if self.redraws:
            # vertical_overflow: a table taller than the screen must not scroll at each refresh.
            self._live = Live(
                self._view(), console=self.console, refresh_per_second=4, vertical_overflow="crop"
            )
            self._live.start()
        elif self.title:
            self._print(self.title)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.vertical_overflow = "visible"
            self._live.update(self._table(len(self._records)))
            self._live.stop()
            self._live = None

    def start(self, phase: Phase, total: int | None = None) -> None:
        """Begin a phase of `total` units (episodes, candidates, steps); None when unknown."""
        if not self.redraws:
            return
        if phase in self._tasks:
            self._progress.remove_task(self._tasks[phase])
        self._tasks[phase] = self._progress.add_task(PHASE_NAMES[phase], total=total)
        self._refresh()

    def advance(self, phase: Phase, n: int = 1) -> None:
        if phase in self._tasks:
            self._progress.advance(self._tasks[phase], n)

    def finish(self, phase: Phase) -> None:
        if phase in self._tasks:
            task = self._tasks[phase]
            done = next(t.completed for t in self._progress.tasks if t.id == task)
            self._progress.update(task, total=max(done, 1), completed=max(done, 1))
            self._progress.stop_task(task)

    def add(self, record: RoundRecord) -> None:
        """Show a committed round."""
        self._records.append(record)
        if self._live is None:
            self._print(round_line(record, self.rounds))
            return
        for task in self._tasks.values():
            self._progress.remove_task(task)
        self._tasks.clear()
        self._refresh()

    def note(self, text: str) -> None:
        """Say something above the table (or as a line of its own)."""
        if self._live is None:
            self._print(text)
        else:
            self.console.print(Text(text))

    def _print(self, text: str) -> None:
        print(text, file=self.console.file, flush=True)

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._view())

    def _view(self) -> Group:
        room = max(3, self.console.height - _CHROME_LINES)
        return Group(self._table(room), self._progress)

    def _table(self, room: int) -> Table:
        wide = self.console.width >= 120
        table = Table(title=Text(self.title) if self.title else None, title_justify="left")
        table.add_column("round", justify="right", no_wrap=True)
        table.add_column("harness", no_wrap=True)
        table.add_column("policy", justify="right", no_wrap=True)
        table.add_column("evolve", justify="right", no_wrap=True)
        table.add_column("held-out, 95%", no_wrap=True)
        if wide:
            table.add_column("tokens", justify="right", no_wrap=True)
            table.add_column("staleness", justify="right", no_wrap=True)
        table.add_column("evolution", no_wrap=True)
        # The last column takes what the others leave: those must never be cut.
        left = max(12, self.console.width - (96 if wide else 64))
        shown = self._records[-room:] if room else []
        if len(shown) < len(self._records):
            table.caption = f"rounds before {shown[0].round} not shown"
        for record in shown:
            of = f"/{self.rounds}" if self.rounds is not None else ""
            cells = [
                Text(f"{record.round}{of}"),
                Text(short(record.harness_id)),
                Text(f"v{record.policy_version}"),
                Text(percent(record.evolve.success)),
                Text(with_interval(record.heldout)),
            ]
            if wide:
                cells.append(Text(quantity(record.tokens.total)))
                cells.append(Text(staleness_text(record)))
            style = _OUTCOME_STYLE.get(record.evolution.outcome, "dim")
            told = Text(verdict_text(record), style=style)
            told.truncate(left, overflow="ellipsis")
            cells.append(told)
            table.add_row(*cells)
        return table
