"""`coevo eval`: its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollout.task import SPLITS


def add_parser(commands: Any) -> None:
    """Add `eval` to the parsers of `coevo`."""
    text = "Measure one harness under one policy, whatever runs they are from."
    parser = commands.add_parser("eval", help=text, description=text)
    parser.add_argument(
        "--harness", required=True, metavar="RUN[@ROUND]|DIR",
        help="of a run (after its last round, or before ROUND), or a bundle's directory",
    )  # fmt: skip
    parser.add_argument(
        "--policy", required=True, metavar="RUN[@ROUND]|MODELDIR",
        help="of a run, or a Hugging Face model directory",
    )  # fmt: skip
    parser.add_argument(
        "--config", type=Path,
        help="where environment, rollout and engine settings are from (default: the policy's run, "
        "else the harness's)",
    )  # fmt: skip
    parser.add_argument("overrides", nargs="*", help="key=value, for example rollout.temperature=1")
    parser.add_argument(
        "--env", metavar="NAME",
        help="another environment, with its own default options; environment.options.KEY=VALUE sets "
        "some",
    )  # fmt: skip
    parser.add_argument("--split", default="heldout", choices=SPLITS, help="default: %(default)s")
    parser.add_argument("-n", type=int, help="tasks (default: as the run's last evaluation)")
    parser.add_argument("-o", "--output", type=Path, required=True, help="a JSON file to write")
    parser.set_defaults(handler="coevo.eval_commands:run")
