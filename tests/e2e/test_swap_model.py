"""Another base model: a sharded Llama that trains and serves in turns, and a preflight that starts both."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coevo.config import load_config
from coevo.seed_model import seed_model
from rollout.policy.weights import checkpoint_files, fingerprint_file, fingerprint_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
SMOKE = "configs/smoke.yaml"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke model's settings with another architecture, saved in several files."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    made, _ = seed_model(load_config(ROOT / SMOKE, ["policy.warmstart.architecture.family=llama"]))
    directory = tmp_path_factory.mktemp("models") / "llama"
    AutoModelForCausalLM.from_pretrained(made).save_pretrained(directory, max_shard_size="150KB")
    AutoTokenizer.from_pretrained(made).save_pretrained(directory)
    return directory


def coevo(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "coevo.cli", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def test_a_sharded_llama_co_evolves_with_engine_and_trainer_in_turns(
    llama: Path, tmp_path: Path
) -> None:
    assert len(checkpoint_files(llama)) > 1
    coevo(
        "run", SMOKE, "rounds=1", "name=it", f"runs_dir={tmp_path}", "policy.warmstart=null",
        f"policy.model={llama}", "resources.placement=colocated",
        # A model this small earns no reward to learn from: decay alone moves its weights.
        "trainer.kl_beta=0.1", "trainer.weight_decay=0.5", "trainer.lr=0.01",
    )  # fmt: skip
    run = tmp_path / "it"
    (record,) = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    # fp32 on both sides: the published weights arrived whole, tied head included.
    assert record["train"]["probe_max_abs"] < 1e-3
    assert record["train"]["mismatch_max"] < 1e-3
    keys = [json.loads(line)["key"] for line in (run / "journal.jsonl").read_text().splitlines()]
    assert keys == ["0/measure", "0/rollout", "0/evolve", "0/train", "0/publish", "1/measure"]
    published = run / "policy" / "0001" / "model.safetensors"
    assert fingerprint_file(published) != fingerprint_files(checkpoint_files(llama))


def test_a_preflight_starts_engine_and_trainer_and_compares_them(llama: Path) -> None:
    said = coevo(
        "preflight", SMOKE, "policy.warmstart=null", f"policy.model={llama}",
        "resources.placement=colocated",
    )  # fmt: skip
    assert "LlamaForCausalLM" in said
    assert "0 to mend" in said
    words = " ".join(said.split())
    assert "max |Δ log-prob| against separate: packed" in words
    assert "mean |Δ|" in words
    assert "the engine slept while the trainer worked" in words


def test_a_base_model_acts_through_a_transcript(llama: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(llama, base)
    (base / "chat_template.jinja").unlink()
    coevo(
        "run", SMOKE, "rounds=1", "mode=model", "name=it", f"runs_dir={tmp_path}",
        "policy.warmstart=null", f"policy.model={base}", "rollout.template=plain",
    )  # fmt: skip
    (record,) = map(json.loads, (tmp_path / "it" / "metrics.jsonl").read_text().splitlines())
    assert record["rollout"]["outcomes"] == {"completed": 8}
    assert record["train"]["mismatch_max"] < 1e-3
