"""`coevo buffer`: its arguments; the work is in `buffer_commands`."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Add `buffer` and its own commands to the parsers of `coevo`."""
    text = "Look at a run's replay buffer."
    buffer = commands.add_parser("buffer", help=text, description=text)
    buffer_commands = buffer.add_subparsers(dest="buffer_command", required=True, metavar="COMMAND")
    text = "Show what the buffer holds: rounds, harnesses, outcomes, staleness, engine mismatch."
    show = buffer_commands.add_parser("show", help=text, description=text)
    show.add_argument("run", type=Path, help="a run directory, for example runs/quickstart")
    show.add_argument("--round", type=int, help="one round (default: all)")
    show.add_argument("--verify", action="store_true", help="read and check the token data too")
    show.add_argument("--json", action="store_true", help="everything as JSON")
    show.set_defaults(handler="coevo.buffer_commands:run")
