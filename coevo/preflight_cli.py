"""Arguments of `coevo preflight`."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(commands: Any) -> None:
    """Add `preflight` to the command line."""
    text = "Check a configuration's model, memory, disk and engines before a run."
    parser: argparse.ArgumentParser = commands.add_parser("preflight", help=text, description=text)
    parser.add_argument("config", help="a YAML file, for example configs/models/qwen3_8b.yaml")
    parser.add_argument("overrides", nargs="*", help="key=value, for example policy.model=DIR")
    parser.add_argument(
        "--no-engines",
        action="store_true",
        help="leave out what starts the engine and the trainer on the real model",
    )
    parser.set_defaults(handler="coevo.preflight_commands:run")
