"""A run that is killed in every phase ends like one that was never killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 300
VOLATILE = ("wall", "tokens_per_s", "mfu", "wall_s", "length_bias")


def start(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """A `coevo` command in a session of its own, so that one signal can reach only the driver."""
    return subprocess.Popen(
        [sys.executable, "-m", "coevo.cli", *arguments],
        cwd=ROOT,
        stdout=log.open("ab"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def journaled(run: Path) -> list[str]:
    """Keys of the phases that the journal holds whole."""
    file = run / "journal.jsonl"
    if not file.exists():
        return []
    lines = file.read_bytes().rpartition(b"\n")[0].splitlines()
    return [json.loads(line)["key"] for line in lines]


def finish(process: subprocess.Popen[bytes], log: Path) -> None:
    assert process.wait(WAIT_S) == 0, log.read_text()[-3000:]


def stable(value: object) -> object:
    """The record without what a clock measured."""
    if isinstance(value, dict):
        return {k: stable(v) for k, v in value.items() if k not in VOLATILE}
    if isinstance(value, list):
        return [stable(v) for v in value]
    return value


def result(run: Path) -> dict[str, object]:
    """All that the run measured and made."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in metrics:
        # Sizes of files may differ by a compressor's choice; everything they hold is compared.
        record["buffer"].pop("bytes")
    heldout = {p.name: json.loads(p.read_text()) for p in sorted((run / "heldout").glob("*.json"))}
    return {
        "metrics": stable(metrics),
        "summary": stable(json.loads((run / "summary.json").read_text())),
        "heldout": heldout,
        "state": json.loads((run / "state.json").read_text()),
        "weights": sorted(
            (p.parent.name, p.read_bytes()) for p in (run / "policy").glob("*/model.safetensors")
        ),
    }


@pytest.mark.slow
@pytest.mark.timeout(2400)  # eight starts of the engines
def test_a_run_killed_in_every_phase_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    common = ["configs/smoke.yaml", f"runs_dir={tmp_path}"]
    finish(start("run", *common, "name=whole", log=log), log)
    whole = tmp_path / "whole"

    run = tmp_path / "killed"
    # Killed while the phase after each of these runs; evolution and training run side by side.
    after = ["", "0/measure", "0/rollout", "0/publish", "1/rollout", "1/publish"]
    command = ["run", *common, "name=killed"]
    killed = 0
    for key in after:
        process = start(*command, log=log)
        deadline = time.monotonic() + WAIT_S
        while process.poll() is None and time.monotonic() < deadline:
            if (run / "metrics.jsonl").exists() and (not key or key in journaled(run)):
                time.sleep(0.3 * (killed % 3))
                process.send_signal(signal.SIGKILL)
                killed += 1
                break
            time.sleep(0.02)
        process.wait(WAIT_S)
        command = ["resume", str(run)]
    assert killed >= len(after) - 1, log.read_text()[-3000:]
    finish(start("resume", str(run), log=log), log)

    ours, theirs = result(run), result(whole)
    for part in ("metrics", "heldout", "state", "weights"):
        assert ours[part] == theirs[part], part
    mine, other = ours["summary"], theirs["summary"]
    assert isinstance(mine, dict)
    assert isinstance(other, dict)
    assert {**mine, "name": ""} == {**other, "name": ""}


@pytest.mark.slow
def test_a_finished_run_resumes_to_nothing_and_says_where_it_stands(tmp_path: Path) -> None:
    log = tmp_path / "log"
    common = ["configs/smoke.yaml", f"runs_dir={tmp_path}", "name=it", "mode=frozen", "rounds=1"]
    finish(start("run", *common, log=log), log)
    before = (tmp_path / "it" / "metrics.jsonl").read_bytes()
    finish(start("resume", str(tmp_path / "it"), log=log), log)
    assert (tmp_path / "it" / "metrics.jsonl").read_bytes() == before
    status = subprocess.run(
        [sys.executable, "-m", "coevo.cli", "status", str(tmp_path / "it")],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert "finished" in status.stdout
    assert "held-out, last measured (round 1)" in status.stdout


@pytest.mark.slow
def test_ctrl_c_keeps_the_state_and_prints_how_to_go_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = tmp_path / "it"
    process = start("run", "configs/smoke.yaml", f"runs_dir={tmp_path}", "name=it", log=log)
    deadline = time.monotonic() + WAIT_S
    while "0/measure" not in journaled(run) and time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(WAIT_S) == 75, log.read_text()[-3000:]
    said = log.read_text()
    assert f"coevo resume {run}" in said
    assert "Traceback" not in said
