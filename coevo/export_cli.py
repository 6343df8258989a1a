"""`coevo export`: its arguments, one command a thing that is exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Add `export` and its own commands to the parsers of `coevo`."""
    text = "Take something out of a run for use elsewhere."
    export = commands.add_parser("export", help=text, description=text)
    kinds = export.add_subparsers(dest="export_command", required=True, metavar="WHAT")
    text = "Write rollouts as a data set that TRL and `datasets` read."
    dataset = kinds.add_parser("dataset", help=text, description=text)
    dataset.add_argument("run", type=Path, help="a run directory, for example runs/quickstart")
    dataset.add_argument("-o", "--output", type=Path, required=True, help="a new directory")
    dataset.add_argument(
        "--kind", choices=("sft", "preference"), default="sft",
        help="sft: segments of successful episodes; preference: the best against the worst "
        "continuation of one context (default: %(default)s)",
    )  # fmt: skip
    dataset.add_argument(
        "--format", choices=("hf", "parquet", "jsonl"), default="hf",
        help="hf: datasets.load_from_disk (default: %(default)s)",
    )  # fmt: skip
    dataset.add_argument("--rounds", metavar="A:B", help="rounds A to B − 1 (default: all)")
    dataset.add_argument(
        "--roles", default="incumbent,candidate", help="comma-separated (default: %(default)s)"
    )
    dataset.add_argument(
        "--tokenizer", type=Path,
        help="model directory whose tokenizer adds columns of text (default: the run's own model)",
    )  # fmt: skip
    dataset.add_argument("--license", default="unknown", help="for the data set card")
    dataset.set_defaults(handler="coevo.export_commands:dataset")
