"""A run that is killed in every phase ends like one that was never killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.kill_test import final_state, journaled, start

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 300


def finish(process: subprocess.Popen[bytes], log: Path) -> None:
    assert process.wait(WAIT_S) == 0, log.read_text()[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(2400)  # eight starts of the engines
@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        ("synchronous", ["", "0/measure", "0/rollout", "0/publish", "1/rollout", "1/publish"]),
        # While round 0 evolves and trains, and round 1 is rolled out ahead, or was.
        ("pipelined", ["0/measure", "1/rollout"]),
    ],
)
def test_a_run_killed_in_every_phase_ends_like_an_undisturbed_one(
    tmp_path: Path, schedule: str, after: list[str]
) -> None:
    log = tmp_path / "log"
    common = ["configs/smoke.yaml", f"runs_dir={tmp_path}", f"schedule={schedule}"]
    finish(start("run", *common, "name=whole", log=log), log)
    whole = tmp_path / "whole"

    run = tmp_path / "killed"
    # Killed while the phase after each of these runs; evolution and training run side by side.
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

    ours, theirs = final_state(run), final_state(whole)
    for part in theirs:
        assert ours[part] == theirs[part], part


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
    # A shell's background job ignores the signal, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
