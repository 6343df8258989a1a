"""Trackers through their own packages, offline: rounds arrive once, and a resumed run goes on in the
same run of the tracker."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from synthetic_runs import round_record

from coevo.config import RunConfig, load_config
from coevo.errors import InputError
from coevo.records import SplitResult
from coevo.sinks import Sinks, check_sinks

SMOKE = Path(__file__).resolve().parents[2] / "configs" / "smoke.yaml"
RECORDS = [round_record(t, heldout=SplitResult.of(5 * t, 20)) for t in range(3)]


def _config(root: Path, sink: str) -> RunConfig:
    (root / "it").mkdir()
    return load_config(SMOKE, [f"sinks=[{sink}]", f"runs_dir={root}", "name=it", "project=tests"])


def _send(config: RunConfig, rounds: int) -> list[str]:
    """As one process of the run would, up to `rounds` committed rounds; what was said."""
    said: list[str] = []
    sinks = Sinks(config, Path(config.runs_dir) / config.name, said.append)
    for committed in range(1, rounds + 1):
        sinks.send(RECORDS[:committed])
    sinks.close()
    return said


def _kept(config: RunConfig, sink: str) -> dict[str, object]:
    found = json.loads((Path(config.runs_dir) / config.name / "sinks.json").read_text())
    kept: dict[str, object] = found["sinks"][sink]
    return kept


def test_mlflow_gets_each_round_once_and_a_resumed_run_goes_on(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    config = _config(tmp_path, "mlflow")
    assert _send(config, 2) == []
    first = _kept(config, "mlflow")
    assert _send(config, 3) == []
    assert _kept(config, "mlflow") == {"id": first["id"], "rounds": 3}
    run = MlflowClient().get_run(str(first["id"]))
    assert run.info.status == "FINISHED"
    assert run.data.params["trainer.lr"] == "0.0006"
    history = MlflowClient().get_metric_history(run.info.run_id, "heldout/success")
    assert [(m.step, m.value) for m in history] == [(0, 0.0), (1, 0.25), (2, 0.5)]


def test_a_tracker_that_is_away_stops_nothing_and_gets_all_of_it_later(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    config = _config(tmp_path, "mlflow")
    said = _send(config, 2)
    assert [text.split(":")[0] for text in said] == [
        "mlflow has 0 of 1 rounds",
        "mlflow has 0 of 2 rounds",
    ]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert _send(config, 3) == []
    assert _kept(config, "mlflow")["rounds"] == 3


def test_trackio_gets_each_round_once_and_a_resumed_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    import trackio.sqlite_storage
    import trackio.utils

    for module in (trackio.utils, trackio.sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    config = _config(tmp_path, "trackio")
    assert _send(config, 2) == []
    assert _send(config, 3) == []
    (database,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(database) as rows:
        found = rows.execute("select run_name, step, metrics from metrics order by step").fetchall()
    assert {name for name, _, _ in found} == {_kept(config, "trackio")["id"]}
    assert [(step, json.loads(text)["heldout/success"]) for _, step, text in found] == [
        (0, 0.0),
        (1, 0.25),
        (2, 0.5),
    ]


def test_wandb_offline_keeps_one_run_over_two_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = _config(tmp_path, "wandb")
    assert _send(config, 2) == []
    assert _send(config, 3) == []
    kept = _kept(config, "wandb")
    assert kept["rounds"] == 3
    folders = list((tmp_path / "it" / "wandb").glob("offline-run-*"))
    assert len(folders) >= 1
    assert all(folder.name.endswith(f"-{kept['id']}") for folder in folders)


def test_a_sink_whose_package_is_missing_is_refused_with_the_command(tmp_path, monkeypatch):
    config = _config(tmp_path, "trackio")
    check_sinks(config)
    monkeypatch.setattr("coevo.sinks.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'coevo\[trackio\]'"):
        check_sinks(config)
