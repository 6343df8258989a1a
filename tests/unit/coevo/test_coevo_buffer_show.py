"""`coevo buffer show` on runs that are whole, going, thinned out or damaged."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_runs import make_run

from coevo.cli import main
from rollout.buffer import ReplayBuffer
from rollout.trajectory import Cost, Outcome, Segment, Trajectory


def trajectory(round: int, number: int, **changes: Any) -> Trajectory:
    n = 4 + number
    mask = np.arange(n) >= 2
    segment = Segment(
        np.arange(n, dtype=np.int32), mask, np.where(mask, -1.0, 0).astype(np.float32),
        np.where(mask, round, -1).astype(np.int32), 1.0,
    )  # fmt: skip
    made = Trajectory(
        f"{round}-{number}", f"task-{number}", round, "incumbent", "a" * 64, round, 0,
        Outcome("completed"), float(number % 2), bool(number % 2), 3, (segment,), Cost(2, n - 2),
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three rounds; candidates in the first, an infrastructure error in the second, the trainer's
    log-probs on the last, token data of the first deleted."""
    path = make_run(tmp_path, "coevolve", rounds=3)
    buffer = ReplayBuffer(path, 2, 100, keep_rounds=2)
    for number in range(3):
        rows = [trajectory(number, i) for i in range(4)]
        if number == 1:
            rows[0] = dataclasses.replace(rows[0], outcome=Outcome("infra_error", "gone"))
            rows[1] = dataclasses.replace(rows[1], outcome=Outcome("truncated"))
        buffer.append(number, "incumbent", rows)
        if number == 0:
            other = {"role": "candidate", "harness_id": "b" * 64}
            buffer.append(0, "select-0", [trajectory(0, i, **other) for i in range(5, 8)])
    view = buffer.part_view(2, "incumbent")
    buffer.write_trainer_logprobs(2, "incumbent", view.logprobs - np.float32(0.25), 2)
    buffer.retain(2)
    (path / "state.json").write_text(json.dumps({"schema": 1, "round": 3, "policy_version": 3}))
    return path


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, str]:
    assert main(["buffer", "show", *map(str, arguments)]) == 0
    return capsys.readouterr()


def test_it_shows_parts_harnesses_outcomes_staleness_and_mismatch(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, error = shown(capsys, run, "--verify")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "coevolve-0: mode coevolve, policy v3, finished" in lines
    assert any(line.startswith("0 select-0 0 3 66.7% 0.667 3 30 (deleted)") for line in lines)
    assert any(line.startswith("1 incumbent 3 0 66.7%") for line in lines)
    assert any(line.startswith("all 11 3 14 ") for line in lines)
    assert any(line.startswith("aaaaaaaa 0–2 11 78.6% 54.5%") for line in lines)
    assert any(line.endswith("1 (6.7%)") and line.startswith("infra_error") for line in lines)
    assert any(line.startswith("3 ██") and "7 (50.0%)" in line for line in lines)
    assert "2 incumbent 14 0.25 0.25 0.25" in lines
    assert error == ""


def test_the_same_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(shown(capsys, run, "--json", "--round", 1)[0])
    assert data["staleness"] == {"2": 3}
    (part,) = data["parts"]
    assert part["infra_errors"] == 1
    assert part["outcomes"] == {"completed": 2, "truncated": 1}
    assert part["harnesses"] == {"a" * 64: {"trajectories": 3, "successes": 2, "reward": 2 / 3}}


def test_an_unknown_round_names_those_there_are(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["buffer", "show", str(run), "--round", "7"]) == 2
    assert "has no round 7; rounds there: 0, 1, 2" in capsys.readouterr().err


def test_a_run_without_a_buffer_yet_is_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = shown(capsys, make_run(tmp_path, "frozen", rounds=1, finished=False))
    assert "The buffer is empty." in out


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("trajectories.parquet", ()),
        ("MANIFEST.json", ()),
        ("segments.safetensors", ()),
        ("segments.safetensors", ("--verify",)),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_shown(
    run: Path, capsys: pytest.CaptureFixture[str], name: str, arguments: tuple[str, ...]
) -> None:
    file = run / "rounds/0001/incumbent" / name
    data = bytearray(file.read_bytes())
    if arguments:
        data[-3] ^= 1  # of the same size: only reading it all finds it
    else:
        del data[len(data) // 2 :]
    file.write_bytes(data)
    out, error = shown(capsys, run, *arguments)
    assert f"problem: {file}" in error
    assert error.count("\n") == 1
    assert "select-0" in out


def test_a_part_that_is_being_written_is_not_there_yet(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = run / "rounds/0003/.incumbent.tmp"
    hidden.mkdir(parents=True)
    (hidden / "MANIFEST.json").write_text("{")
    _, error = shown(capsys, run)
    assert error == ""
