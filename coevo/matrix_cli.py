"""`coevo matrix`: its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollout.task import SPLITS


def add_parser(commands: Any) -> None:
    """Add `matrix` to the parsers of `coevo`."""
    text = "Measure harnesses of a run under policies of it; split the gain into both."
    parser = commands.add_parser("matrix", help=text, description=text)
    parser.add_argument("run", type=Path, help="a run directory, for example runs/quickstart")
    rounds = "comma-separated rounds, `last` or `all` (default: %(default)s)"
    parser.add_argument("--harness", default="0,last", help=f"harnesses of these: {rounds}")
    parser.add_argument("--policy", default="0,last", help=f"policies of these: {rounds}")
    parser.add_argument("--rounds", metavar="ROUNDS", help="both at once, for example all")
    parser.add_argument(
        "--split", default="heldout", choices=[s for s in SPLITS if s != "evolve"],
        help="default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "-n", type=int, help="tasks (default: as the run's first and last evaluation)"
    )
    parser.set_defaults(handler="coevo.matrix_commands:run")
