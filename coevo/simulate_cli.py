"""`coevo simulate`: its arguments."""

from __future__ import annotations

import argparse
from typing import Any

FIELDS = (
    ("tokens_per_s", float, 2000.0, "sampled tokens a second of one engine with all slots in use"),
    ("train_tokens_per_s", float, 10_000.0, "trained tokens a second of the configured trainer"),
    ("sampled", float, 512.0, "sampled tokens of an episode, a mean"),
    ("prompt", float, 1024.0, "tokens of an episode that were not sampled"),
    ("spread", float, 0.5, "sigma of the log-normal of sampled tokens; 0: all alike"),
    ("weight_bytes", float, 2e9, "bytes of one publication of weights"),
    ("publish_bytes_per_s", float, 2e9, "of the shared file system, or of a broadcast"),
    ("driver_s", float, 0.008, "driver's own work an episode"),
    ("buffer_bytes_per_s", float, 2e8, "token data appended to the replay buffer"),
    ("evolve_s", float, 0.0, "an evolution's time at its language model"),
    ("evolve_episodes", int, 0, "candidate episodes of an evolution"),
)
"""(name of coevo.simulate.Speeds, type, default, help)."""


def add_parser(commands: Any) -> None:
    """Adds `simulate` to the subparsers `commands`."""
    text = "Forecast round time, idle shares, staleness and bytes at other sizes; loads no model."
    parser: argparse.ArgumentParser = commands.add_parser("simulate", help=text, description=text)
    parser.add_argument("config", help="a YAML file, for example configs/quickstart.yaml")
    parser.add_argument("overrides", nargs="*", help="key=value, for example tasks.per_round=512")
    parser.add_argument(
        "--engines", default="1,8,64,512,4096", help="comma-separated (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, help="to simulate (default: the configuration's)")
    parser.add_argument(
        "--weak", action="store_true",
        help="tasks a round and trainer grow with the engines (default: both as configured)",
    )  # fmt: skip
    for name, kind, default, said in FIELDS:
        option = "--" + name.replace("_", "-")
        parser.add_argument(
            option, type=kind, default=default, help=f"{said} (default: %(default)s)"
        )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler="coevo.simulate_commands:run")
