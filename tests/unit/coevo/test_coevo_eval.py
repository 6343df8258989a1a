"""`coevo eval`: where harness and policy are from, and what is refused before an engine starts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import scripted_run
from safetensors.numpy import save_file

from coevo import eval_commands
from coevo.base_policy import model_fingerprint
from coevo.cli import main
from coevo.errors import InputError
from coevo.eval_record import EvalRecord
from coevo.eval_sources import harness_source, policy_source
from coevo.stack import Stack
from harness.bundle import load

CONFIGS = Path(__file__).parents[3] / "configs"
HARNESS = str(CONFIGS / "harness" / "household")


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "m0"
    path.mkdir()
    save_file({"w": np.zeros((2, 3), np.float32)}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    return str(path)


def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, *command: str) -> str:
    out = tmp_path / "out.json"
    assert main(["eval", "-o", str(out), *command]) == 2
    assert not out.exists()
    return capsys.readouterr().err


def test_directories_are_told_from_runs(model: str) -> None:
    assert harness_source(HARNESS).in_run() is None
    assert policy_source(model).in_run() is None
    with pytest.raises(InputError, match=r"is neither a run .* nor a directory with harness\.yaml"):
        harness_source(model)
    with pytest.raises(InputError, match=r"is neither a run .* nor a directory with config\.json"):
        policy_source(HARNESS)


def test_bad_input_is_refused_before_an_engine_starts(
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eval_commands, "run_measured", pytest.fail)
    pair = ("--harness", HARNESS, "--policy", model)
    smoke = ("--config", str(CONFIGS / "smoke.yaml"))
    assert "give --config" in refused(capsys, tmp_path, *pair)
    assert "expected at least 1 task" in refused(capsys, tmp_path, *pair, *smoke, "-n", "0")
    said = refused(capsys, tmp_path, *pair, *smoke, "-n", "99")
    assert "asks for 99 episodes of split 'heldout', which has 6" in said
    said = refused(capsys, tmp_path, *pair, *smoke, "--env", "househol")
    assert "did you mean 'household'" in said
    said = refused(capsys, tmp_path, *pair, *smoke, "environment.options.rooms=3")
    assert "rooms" in said
    assert "there is no such run directory" in refused(
        capsys, tmp_path, "--harness", HARNESS, "--policy", "runs/nope@3"
    )
    (Path(model) / "model.safetensors").write_bytes(b"short")
    assert "is cut short" in refused(capsys, tmp_path, *pair, *smoke)


def test_a_result_is_not_overwritten(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "there.json"
    out.write_text("{}")
    assert main(["eval", "--harness", HARNESS, "--policy", model, "-o", str(out)]) == 2
    assert "exists; choose another -o" in capsys.readouterr().err


def test_a_result_holds_the_episodes_and_all_that_they_depend_on(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def over_pool(config: Any, model: Any, console: Any, work: Any, after: str) -> Any:
        pool: Any = scripted_run.Pool()
        return asyncio.run(work(Stack(config, None, cast(Any, None), pool, "in_process", "")))

    monkeypatch.setattr(eval_commands, "run_measured", over_pool)
    out = tmp_path / "new" / "result.json"
    command = ["eval", "--harness", HARNESS, "--policy", model, "-o", str(out), "--split", "ood",
               "--config", str(CONFIGS / "smoke.yaml"), "-n", "3", "rollout.temperature=0.7"]  # fmt: skip
    assert main(command) == 0
    found = EvalRecord.from_json(json.loads(out.read_text()), str(out))
    assert (found.harness.id, found.harness.round) == (load(HARNESS).id, None)
    assert (found.policy.fingerprint, found.policy.model) == (model_fingerprint(Path(model)), model)
    assert (found.result.n, found.split, found.rollout["temperature"]) == (3, "ood", 0.7)
    assert {e.task_id.split("/")[1] for e in found.episodes} == {"ood"}
    assert [(read["split"], read["n"], read["reader"]) for read in found.reads] == [
        ("ood", 3, "eval")
    ]
    assert "(n = 3), 95%" in capsys.readouterr().out
    assert [p.name for p in out.parent.iterdir()] == ["result.json"]
