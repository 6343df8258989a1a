"""What leaves a run: harness, model and traces, with cards; and what is refused."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file
from synthetic_runs import make_run

from coevo.base_policy import model_fingerprint
from coevo.cli import main
from coevo.config import dump_config, load_config
from harness.atomic import write_json
from harness.bundle import load
from harness.component import Component
from harness.edit import AddComponent, apply
from harness.store import Store

CONFIGS = Path(__file__).parents[3] / "configs"
GUARD = Component(
    "loop_guard", "control_flow", entrypoint="harness.processors.loop_guard:LoopGuard"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m0"
    path.mkdir()
    save_file({"w": np.zeros((2, 3), np.float32)}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (path / "tokenizer.json").write_text("{}")
    return path


@pytest.fixture
def run(tmp_path: Path, model: Path) -> Path:
    """Three rounds under H0 and M0, after which a guard and a trained policy took over."""
    path = make_run(tmp_path, "coevolve", rounds=3, name="it")
    settings = ["name=it", "policy.warmstart=null", f"policy.model={model}"]
    (path / "config.yaml").write_text(dump_config(load_config(CONFIGS / "smoke.yaml", settings)))
    first = load(CONFIGS / "harness" / "household")
    edit = AddComponent(GUARD)
    second = apply(first, [edit])
    store = Store(path / "harness")
    store.add(first, source="seed", round=0, note="H0")
    store.add(
        second, source="catalogue:loop_guard", round=2, parents=(first.id,), edits=(edit,),
        verdict="apply",
    )  # fmt: skip
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    text = "".join(
        json.dumps(line | {"harness_id": first.id, "policy_version": 0}) + "\n" for line in lines
    )
    (path / "metrics.jsonl").write_text(text)
    for number in range(3):
        file = path / "heldout" / f"{number:04d}.json"
        found = json.loads(file.read_text())
        file.write_text(json.dumps(found | {"harness_id": first.id, "policy_version": 0}))
    found |= {"round": 3, "harness_id": second.id, "policy_version": 1}
    (path / "heldout" / "0003.json").write_text(json.dumps(found))
    write_json(
        path / "state.json",
        {"schema": 1, "round": 3, "harness_id": second.id, "policy_version": 1},
    )
    publish(path, {"w": np.ones((2, 3), np.float32)})
    write_json(path / "base_policy.json", {"schema": 1, "fingerprint": model_fingerprint(model)})
    traces = path / "traces" / "0001" / "incumbent.jsonl.gz"
    traces.parent.mkdir(parents=True)
    with gzip.open(traces, "wt") as file_:
        for i in range(3):
            file_.write(json.dumps({"id": f"0001/incumbent/t{i}", "trace": {"steps": i}}) + "\n")
    return path


def publish(run: Path, tensors: dict[str, np.ndarray]) -> Path:
    folder = run / "policy" / "0001"
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "model.safetensors"
    save_file(tensors, weights)
    write_json(folder / "model.safetensors.json", {"fingerprint": model_fingerprint(folder)})
    return weights


def header(card: Path) -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load(card.read_text().split("---")[1])
    return found


def test_a_harness_is_written_with_its_id_and_a_card_of_its_lineage(
    run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main(["export", "harness", str(run), "-o", str(out), "--license", "mit"]) == 0
    (folder,) = (p for p in out.iterdir() if p.is_dir())
    bundle = load(folder)
    assert folder.name == f"harness-{bundle.id[:12]}"
    assert "loop_guard" in {c.id for c in bundle.components}
    found = header(out / "README.md")
    assert (found["harness_id"], found["license"], found["round"]) == (bundle.id, "mit", 3)
    assert [item["split"] for item in found["results"]] == ["heldout"]  # type: ignore[attr-defined]
    text = (out / "README.md").read_text()
    assert "(round 2, catalogue:loop_guard, apply): add loop_guard" in text
    assert "(round 0, seed): H0" in text
    assert "Evolved by recipe `quickstart`" in text


def test_a_tar_of_the_same_harness_has_the_same_bytes_and_names_its_id(
    run: Path, tmp_path: Path
) -> None:
    outs = [tmp_path / f"{name}.tar.gz" for name in "ab"]
    for out in outs:
        assert main(["export", "harness", f"{run}@0", "-o", str(out)]) == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()
    with tarfile.open(outs[0]) as tar:
        id = tar.pax_headers["comment"].removeprefix("coevo harness ")
        tar.extractall(tmp_path / "there", filter="data")
    assert load(tmp_path / "there" / f"harness-{id[:12]}").id == id
    assert "that the run began with" in (tmp_path / "there" / "README.md").read_text()


def test_a_model_has_the_weights_of_its_version_beside_the_tokenizer(
    run: Path, model: Path, tmp_path: Path
) -> None:
    for round, value in (("@0", 0.0), ("", 1.0)):
        out = tmp_path / f"out{value:g}"
        assert main(["export", "model", f"{run}{round}", "-o", str(out)]) == 0
        from safetensors.numpy import load_file

        assert load_file(out / "model.safetensors")["w"][0, 0] == value
        assert (out / "tokenizer.json").is_file()
        found = header(out / "README.md")
        assert found["fingerprint"] == model_fingerprint(out)
        assert found["library_name"] == "transformers"
    assert "optimiser steps of" in (out / "README.md").read_text()


def test_traces_come_as_lines_that_say_where_they_are_from(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    assert main(["export", "trace", str(run), "-o", str(out)]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["trace"]["steps"] for line in lines] == [0, 1, 2]
    assert {(line["run"], line["round"], line["part"]) for line in lines} == {
        ("it", 1, "incumbent")
    }


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(["export", *command]) == 2
    return capsys.readouterr().err


def test_bad_input_is_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert "has no round '9'" in refused(capsys, "harness", f"{run}@9", "-o", out)
    assert "a round is missing behind the @" in refused(capsys, "model", f"{run}@", "-o", out)
    assert "Did you mean" in refused(capsys, "model", f"{run}x", "-o", out)
    assert "ends in .jsonl" in refused(capsys, "trace", str(run), "-o", out)
    jsonl = str(tmp_path / "out.jsonl")
    assert "rounds with traces: 1" in refused(capsys, "trace", f"{run}@2", "-o", jsonl)
    assert "exists; choose another -o" in refused(capsys, "harness", str(run), "-o", str(run))
    assert "expected a directory, or a file that ends in .tar" in refused(
        capsys, "harness", str(run), "-o", f"{out}.zip"
    )
    assert not Path(out).exists()
    assert not Path(jsonl).exists()


def test_damaged_files_are_named(
    run: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    weights = run / "policy" / "0001" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + b"\x07")
    said = refused(capsys, "model", str(run), "-o", out)
    assert f"{weights} is damaged" in said
    weights.write_bytes(whole[:-4])
    assert "is cut short" in refused(capsys, "model", str(run), "-o", out)
    publish(run, {"other": np.ones((2, 3), np.float32)})
    assert "lacks 1 of 1 tensors, e.g. 'w'" in refused(capsys, "model", str(run), "-o", out)
    traces = run / "traces" / "0001" / "incumbent.jsonl.gz"
    traces.write_bytes(traces.read_bytes()[:20])
    said = refused(capsys, "trace", str(run), "-o", f"{out}.jsonl")
    assert f"{traces} is damaged" in said
    save_file({"w": np.ones((2, 3), np.float32)}, model / "model.safetensors")
    said = refused(capsys, "model", str(run), "-o", out)
    assert "began with a model of fingerprint" in said
    (run / "heldout" / "0001.json").write_text("{")
    assert "heldout/0001.json is damaged" in refused(capsys, "harness", str(run), "-o", out)
    id = json.loads((run / "state.json").read_text())["harness_id"]
    damaged = run / "harness" / "objects" / id / "harness.yaml"
    damaged.chmod(0o644)
    damaged.write_text("schema: 1\n")
    assert "is damaged" in refused(capsys, "harness", str(run), "-o", out)
    assert not Path(out).exists()
