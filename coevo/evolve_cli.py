"""`coevo evolve`: its arguments; the work is in `evolve_commands`."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Add `evolve` and its own commands to the parsers of `coevo`."""
    text = "Look at a run's harness evolution."
    evolve = commands.add_parser("evolve", help=text, description=text)
    evolve_commands = evolve.add_subparsers(dest="evolve_command", required=True, metavar="COMMAND")
    text = "Show what each round proposed, why it was accepted or rejected, and what it cost."
    show = evolve_commands.add_parser("show", help=text, description=text)
    show.add_argument("run", type=Path, help="a run directory, for example runs/quickstart")
    show.add_argument("round", type=int, nargs="?", help="one round (default: all)")
    show.add_argument("--json", action="store_true", help="everything as JSON")
    show.set_defaults(handler="coevo.evolve_commands:run")
