"""`coevo watch`: its arguments."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

PORT = 8080
EVERY_S = 5.0


def add_parser(commands: Any) -> None:
    """Adds `watch` to the subparsers `commands`."""
    text = "Serve the report page of runs on this machine alone, drawn anew as they go on."
    parser: argparse.ArgumentParser = commands.add_parser("watch", help=text, description=text)
    parser.add_argument("runs", type=Path, nargs="+", help="run directories")
    parser.add_argument(
        "--port", type=int, default=PORT, help="0 takes any free one (default: %(default)s)"
    )
    parser.add_argument(
        "--every", type=float, default=EVERY_S, metavar="SECONDS",
        help="how often the page asks for news (default: %(default)s)",
    )  # fmt: skip
    parser.set_defaults(handler="coevo.watch_commands:run")
