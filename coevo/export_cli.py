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

    where = "RUN, RUN@ROUND (what served at its start) or RUN@last"
    text = "Write a run's harness: the bundle, its id in its name, and a card."
    harness = kinds.add_parser("harness", help=text, description=text)
    harness.add_argument("run", metavar="RUN[@ROUND]", help=where)
    harness.add_argument(
        "-o", "--output", type=Path, required=True, help="a new directory, or FILE.tar, FILE.tar.gz"
    )
    harness.set_defaults(handler="coevo.export_artifacts:harness")
    text = "Write a run's policy as a Hugging Face model directory with a card."
    model = kinds.add_parser("model", help=text, description=text)
    model.add_argument("run", metavar="RUN[@ROUND]", help=where)
    model.add_argument("-o", "--output", type=Path, required=True, help="a new directory")
    model.set_defaults(handler="coevo.export_artifacts:model")
    for parser in (harness, model):
        parser.add_argument("--license", default="unknown", help="for the card")
    text = "Write the traces of a run's episodes as JSON lines."
    trace = kinds.add_parser("trace", help=text, description=text)
    trace.add_argument("run", metavar="RUN[@ROUND]", help="RUN (all rounds) or RUN@ROUND")
    trace.add_argument(
        "-o", "--output", type=Path, required=True, help="a new file: FILE.jsonl or FILE.jsonl.gz"
    )
    trace.add_argument("--task", metavar="TEXT", help="only of tasks whose id holds this text")
    trace.add_argument("--solved", choices=("yes", "no"), help="only of episodes that were, or not")
    trace.set_defaults(handler="coevo.export_artifacts:trace")
