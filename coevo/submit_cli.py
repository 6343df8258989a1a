"""`coevo submit`: its arguments."""

from __future__ import annotations

import argparse
from typing import Any

from coevo import cli

ARRAYS = ("seeds", "arms")


def add_parser(commands: Any) -> None:
    """Adds `submit` to the subparsers `commands`."""
    text = "Submit a run to Slurm: checked first, stopped before the time limit, requeued, resumed."
    parser: argparse.ArgumentParser = commands.add_parser("submit", help=text, description=text)
    parser.add_argument("config", help="a YAML file with a `cluster` section")
    parser.add_argument("overrides", nargs="*", help="key=value, for example cluster.nodes=2")
    parser.add_argument(
        "--dry-run", action="store_true", help="check, print the script, write and submit nothing"
    )
    parser.add_argument(
        "--array", choices=ARRAYS, help="one array task a seed, or an arm; each is a run of its own"
    )
    parser.add_argument(
        "--seeds",
        help="how many, or a list as for `coevo experiment` (default with --array seeds: 3)",
    )
    parser.add_argument(
        "--arms", help="comma-separated modes (default with --array arms: frozen,harness,coevolve)"
    )
    parser.add_argument(
        "--local", action="store_true", help="run the same script here, without Slurm, on one node"
    )
    parser.add_argument("--accept-config", action="store_true", help=cli.ACCEPT_CONFIG)
    parser.set_defaults(handler="coevo.submit_commands:run")
