"""`coevo buffer show`: a run's replay buffer in the terminal, or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coevo.errors import InputError
from coevo.live import percent, quantity, short
from coevo.records import SplitResult
from coevo.runs import Run, load_run
from rollout.buffer_report import PartSummary, Survey, survey
from rollout.trajectory import SCORED

SCHEMA = 1
BAR = 40


def run(arguments: argparse.Namespace) -> None:
    """`coevo buffer show`. Raises RunError or InputError for what a user can mend."""
    found = load_run(arguments.run)
    whole = survey(arguments.run, arguments.verify)
    chosen = whole if arguments.round is None else _only(whole, arguments.round, arguments.run)
    version = policy_version(found, whole)
    if arguments.json:
        print(json.dumps(to_json(chosen, version), indent=1, allow_nan=False))
    else:
        console = Console(highlight=False)
        # A file or a pipe has no width of its own: the table's.
        show(found, chosen, version, console if console.is_terminal else Console(width=110))
    for problem in chosen.problems:
        print(f"problem: {problem}", file=sys.stderr)


def policy_version(found: Run, whole: Survey) -> int:
    """The version that the run trains now: as state.json has it, else the newest that sampled."""
    state = found.path / "state.json"
    try:
        return int(json.loads(state.read_text())["policy_version"])
    except FileNotFoundError:
        return max((v for part in whole.parts for v in part.versions), default=0)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{state} does not hold a policy version ({error!r}); it was edited or is damaged: "
            "`coevo resume` writes it again"
        ) from error


def to_json(chosen: Survey, version: int) -> dict[str, Any]:
    """Everything that `show` prints, as plain values."""
    return {
        "schema": SCHEMA,
        "policy_version": version,
        "rounds": chosen.rounds,
        "staleness": {str(age): n for age, n in chosen.staleness(version).items()},
        "harnesses": {id: asdict(item) for id, item in chosen.by_harness().items()},
        "parts": [asdict(part) for part in chosen.parts],
        "problems": list(chosen.problems),
    }


def show(found: Run, chosen: Survey, version: int, console: Console) -> None:
    """Print the parts, then harnesses, outcomes and staleness over all of them."""
    settings = found.config.get("buffer", {})
    state = "finished" if found.finished else f"{len(found.rounds)} rounds committed so far"
    window = f", window {settings['window']} rounds" if "window" in settings else ""
    console.print(Text(f"{found.name}: mode {found.mode}, policy v{version}, {state}{window}"))
    if not chosen.parts:
        console.print("The buffer is empty.")
        return
    console.print(_parts(chosen))
    console.print(_harnesses(chosen))
    outcomes: Counter[str] = Counter()
    for part in chosen.parts:
        outcomes.update(part.outcomes)
        outcomes["infra_error"] += part.infra_errors
    _bars(console, "Episodes by outcome (an infra_error is kept out of the buffer)", +outcomes)
    _bars(
        console,
        f"Trajectories by staleness (versions behind policy v{version})",
        {str(age): n for age, n in chosen.staleness(version).items()},
    )
    if any(part.mismatch is not None for part in chosen.parts):
        console.print(_mismatch(chosen))
    else:
        console.print("Log-probs of engine and trainer: none compared yet.")


def _parts(chosen: Survey) -> Table:
    table = Table(box=box.SIMPLE, title="Parts", title_justify="left")
    table.add_column("round", justify="right", no_wrap=True)
    table.add_column("part", no_wrap=True)
    for name in ("incumbent", "candidate", "success", "reward", "segments", "tokens", "bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    for part in chosen.parts:
        scored, successes, reward = _totals(part)
        table.add_row(
            str(part.round),
            Text(part.part),
            str(part.roles.get("incumbent", 0)),
            str(part.roles.get("candidate", 0)),
            percent(successes / scored if scored else None),
            f"{reward:.3f}" if scored else "–",
            quantity(part.segments),
            quantity(part.tokens) if part.tokens_kept else f"{quantity(part.tokens)} (deleted)",
            quantity(part.bytes),
        )
    parts = chosen.parts
    table.add_section()
    table.add_row(
        "", "all", *(str(sum(p.roles.get(r, 0) for p in parts)) for r in ("incumbent", "candidate")),
        "", "", quantity(sum(p.segments for p in parts)), quantity(sum(p.tokens for p in parts)),
        quantity(sum(p.bytes for p in parts)),
    )  # fmt: skip
    return table


def _mismatch(chosen: Survey) -> Table:
    table = Table(box=box.SIMPLE, title="Log-probs, |engine − trainer|, nats", title_justify="left")
    table.add_column("round", justify="right")
    table.add_column("part")
    for name in ("sampled tokens", "mean", "p99", "max"):
        table.add_column(name, justify="right")
    for part in chosen.parts:
        if (found := part.mismatch) is not None:
            numbers = (f"{value:.2g}" for value in (found.mean, found.p99, found.max))
            table.add_row(str(part.round), Text(part.part), quantity(found.tokens), *numbers)
    return table


def _harnesses(chosen: Survey) -> Table:
    table = Table(box=box.SIMPLE, title="Harnesses", title_justify="left")
    table.add_column("harness", no_wrap=True)
    for name in ("rounds", "episodes", "share", "success, 95%", "reward"):
        table.add_column(name, justify="right", no_wrap=True)
    total = sum(part.trajectories for part in chosen.parts)
    for id, item in chosen.by_harness().items():
        rounds = sorted({part.round for part in chosen.parts if id in part.harnesses})
        result = SplitResult.of(item.successes, item.trajectories)
        table.add_row(
            short(id),
            f"{rounds[0]}–{rounds[-1]}" if len(rounds) > 1 else str(rounds[0]),
            str(item.trajectories),
            percent(item.trajectories / total),
            f"{percent(result.success)} [{100 * result.lo:.1f}, {100 * result.hi:.1f}]",
            f"{item.reward:.3f}",
        )
    return table


def _bars(console: Console, title: str, counts: Mapping[str, int]) -> None:
    console.print(Text(title, style="italic"))
    most, total = max(counts.values()), sum(counts.values())
    width = max(len(name) for name in counts)
    for name, n in counts.items():
        bar = "█" * max(1, round(BAR * n / most))
        console.print(Text(f"  {name:>{width}}  {bar} {n} ({percent(n / total)})"))
    console.print()


def _totals(part: PartSummary) -> tuple[int, int, float]:
    """Scored episodes, successes, mean reward: all that the buffer keeps are scored."""
    n = sum(count for outcome, count in part.outcomes.items() if outcome in SCORED)
    items = part.harnesses.values()
    reward = sum(h.reward * h.trajectories for h in items) / n if n else 0.0
    return n, sum(h.successes for h in items), reward


def _only(whole: Survey, number: int, path: Path) -> Survey:
    parts = tuple(part for part in whole.parts if part.round == number)
    mark = f"/rounds/{number:04d}/"
    problems = tuple(text for text in whole.problems if mark in text)
    if not parts and not problems:
        there = ", ".join(map(str, whole.rounds)) or "none"
        raise InputError(f"{path}: the buffer has no round {number}; rounds there: {there}")
    return Survey(parts, problems)
