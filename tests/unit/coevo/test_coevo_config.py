"""Configurations compose, refuse what cannot run, and say what to change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from coevo.config import ConfigError, RunConfig, dump_config, load_config, parse_config

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = sorted(
    [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs" / "models").glob("*.yaml")]
)
QUICKSTART = ROOT / "configs" / "quickstart.yaml"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def problems(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_shipped_configuration_parses(path: Path) -> None:
    assert isinstance(load_config(path), RunConfig)


def test_a_dumped_configuration_reads_back_equal() -> None:
    config = load_config(QUICKSTART)
    assert parse_config(yaml.safe_load(dump_config(config))) == config


def test_extends_composes_and_overrides_win(tmp_path: Path) -> None:
    base = write(
        tmp_path / "base.yaml", f"extends: {QUICKSTART}\nrounds: 3\ntrainer: {{lr: 0.1}}\n"
    )
    top = write(tmp_path / "top.yaml", f"extends: {base.name}\nrounds: 4\n")
    config = load_config(top, ["trainer.lr=1e-5", "seed=7"])
    assert (config.rounds, config.trainer.lr, config.seed) == (4, 1e-5, 7)
    # Paths stay those of the file that named them.
    assert Path(config.harness.bundle).is_dir()


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "quickstart.yaml", "rounds: 1\n")
    assert "did you mean 'quickstart.yaml'?" in problems(tmp_path / "quickstrat.yaml")


def test_extends_in_a_circle_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "extends: b.yaml\n")
    write(tmp_path / "b.yaml", "extends: a.yaml\n")
    assert "a.yaml -> b.yaml -> a.yaml" in problems(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainer.learning_rate=1", "trainer.learning_rate: there is no such key"),
        ("rouns=1", "did you mean 'rounds'?"),
        ("policy.engine.kv_cache_byte=1", "did you mean 'kv_cache_bytes'?"),
        ("mode=coevolv", "mode: is 'coevolv'"),
        ("rounds=0", "rounds: is 0"),
        ("name=a b", "name: is 'a b'"),
        ("rounds", "an override is written key=value"),
        ("rounds.x=1", "rounds is 3, which has no key 'x'"),
    ],
)
def test_a_bad_override_is_named_with_what_was_expected(override: str, said: str) -> None:
    assert said in problems(QUICKSTART, override)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["policy.model=/m"], "exactly one of policy.model"),
        (["evolution.recipe=none"], "choose a recipe"),
        (["tasks.samples=1", "buffer.window=1"], "every group is a singleton"),
        (["buffer.min_rounds=9", "buffer.window=9"], "would never train"),
        (["buffer.include=[heldout]"], "held-out episodes never train"),
        (["buffer.min_rounds=5"], "training would never start"),
        (["schedule=pipelined", "resources.placement=colocated"], "the engines sleep while"),
        (["buffer.keep_rounds=1"], "buffer.window trains on 2 rounds; keep at least as many"),
        (["trainer.ratio=decoupled", "buffer.trainer_logprobs=false"], "needs the trainer's own"),
        (
            ["policy={api: {base_url: http://h/v1, model: m}}"],
            "no token ids and log-probs to train on; use mode harness or frozen",
        ),
        (["policy={}"], "policy.api (a hosted one); found none"),
        (["policy.engine.lora={rank: 8}"], "trainer.lora.publish is not 'adapter'"),
        (["trainer.lora={publish: adapter}"], "policy.engine.lora is not set"),
        (
            ["trainer.lora={publish: adapter, rank: 32}", "policy.engine.lora={rank: 8}"],
            "trainer.lora.rank is 32 and policy.engine.lora.rank 8",
        ),
    ],
)
def test_contradictions_are_refused_with_a_sentence(overrides: list[str], said: str) -> None:
    assert said in problems(QUICKSTART, *overrides)


def test_all_problems_are_told_at_once() -> None:
    said = problems(QUICKSTART, "rounds=0", "nme=x", "trainer.lr=-1")
    assert said.count("\n- ") == 3


def test_reading_a_configuration_pulls_no_engine() -> None:
    code = (
        "import sys, coevo.config, harness, harness.runloop, harness.evolve.engine, coevo.commands\n"
        "print([m for m in ('torch', 'ray', 'vllm', 'transformers', 'deepspeed') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
