"""`coevo simulate`: a table of forecasts, one row a number of engines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table

from coevo.config import load_config
from coevo.errors import InputError
from coevo.simulate import Forecast, Speeds, simulate
from coevo.simulate_cli import FIELDS


def run(arguments: argparse.Namespace) -> None:
    """Raises ConfigError or InputError for what a user can mend."""
    config = load_config(arguments.config, arguments.overrides)
    if arguments.rounds is not None and arguments.rounds < 1:
        raise InputError(f"--rounds is {arguments.rounds}; expected at least 1")
    speeds = Speeds(**{name: getattr(arguments, name) for name, *_ in FIELDS})
    forecasts = [
        simulate(config, n, speeds, arguments.weak, arguments.rounds)
        for n in _sizes(arguments.engines)
    ]
    if arguments.json:
        print(json.dumps([asdict(f) for f in forecasts], indent=1, allow_nan=False))
    else:
        Console(width=140, highlight=False).print(_table(forecasts))


def _sizes(text: str) -> list[int]:
    items = text.split(",")
    if not all(item.strip().isdecimal() and int(item) > 0 for item in items):
        raise InputError(f"--engines is {text!r}; expected numbers above 0, for example 1,8,64")
    return [int(item) for item in items]


def _table(forecasts: Sequence[Forecast]) -> Table:
    table = Table(box=box.SIMPLE)
    for head in (
        "engines", "episodes", "round s", "rollout s", "train s", "publish s",
        "engine idle", "trainer idle", "driver", "staleness", "buffer MB",
    ):  # fmt: skip
        table.add_column(head, justify="right")
    for f in forecasts:
        table.add_row(
            f"{f.engines:,}", f"{f.episodes:,}", f"{f.round_s:,.1f}", f"{f.rollout_s:,.1f}",
            f"{f.train_s:,.1f}", f"{f.publish_s:,.1f}", f"{f.engine_idle:.0%}",
            f"{f.trainer_idle:.0%}", f"{f.driver_busy:.0%}",
            f"{f.staleness_mean:.2f} (max {f.staleness_max})", f"{f.buffer_bytes / 1e6:,.1f}",
        )  # fmt: skip
    return table
