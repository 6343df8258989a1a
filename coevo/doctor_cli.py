"""`coevo doctor`: its arguments."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(commands: Any) -> None:
    """Adds `doctor` to the subparsers `commands`."""
    text = "Check this machine: versions, engines, sandbox, Slurm, ports, file system, limits, Ray."
    parser: argparse.ArgumentParser = commands.add_parser("doctor", help=text, description=text)
    parser.add_argument(
        "config", nargs="?", help="check what this configuration needs: its directories, cluster, …"
    )
    parser.add_argument("overrides", nargs="*", help="key=value, for example runs_dir=/shared/runs")
    parser.add_argument(
        "--no-engines", action="store_true", help="leave out what imports the engines or starts Ray"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler="coevo.doctor_commands:run")
