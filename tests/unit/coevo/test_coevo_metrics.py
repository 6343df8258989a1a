"""The metrics log across kills, the TensorBoard view, and the records themselves."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import round_record

from coevo.metrics import MetricsError, MetricsLog, TensorBoard, read_metrics, scalars
from coevo.records import (
    Evaluation,
    EvolveResult,
    RecordError,
    RoundRecord,
    SplitResult,
    Summary,
    TrainRecord,
    Wall,
)


def test_a_round_reads_back_as_it_was_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    record = round_record(0, heldout=SplitResult.of(103, 200), train=TrainRecord(steps=2, loss=0.1))
    with MetricsLog(path) as log:
        assert log.append(record)
    assert read_metrics(path) == ((record,), "")
    line = json.loads(path.read_text())
    assert line["schema"] == 1
    assert line["heldout"] == {
        "n": 200,
        "successes": 103,
        "success": 0.515,
        "lo": pytest.approx(0.4461, abs=1e-4),
        "hi": pytest.approx(0.5833, abs=1e-4),
    }


def test_a_log_cut_at_any_byte_keeps_its_whole_rounds_and_goes_on(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for t in range(3):
            log.append(round_record(t))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    second = whole.index(b"\n", first) + 1
    for cut in (0, 1, first - 1, first, first + 1, second - 2, second - 1, second, len(whole) - 1):
        path.write_bytes(whole[:cut])
        done = (cut + 1 >= first) + (cut + 1 >= second) + (cut + 1 >= len(whole))
        with MetricsLog(path) as log:
            assert [r.round for r in log.records] == list(range(done))
            assert bool(log.repaired) == (
                cut not in (0, first - 1, first, second - 1, second, len(whole) - 1)
            )
            for t in range(done, 3):
                log.append(round_record(t))
        assert path.read_bytes() == whole


def test_reading_beside_a_writer_leaves_a_torn_line_alone(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.append(round_record(0))
    torn = path.read_bytes() + b'{"schema": 1, "rou'
    path.write_bytes(torn)
    records, note = read_metrics(path)
    assert len(records) == 1
    assert "line 2: dropped a torn last line of 18 bytes" in note
    assert path.read_bytes() == torn


def test_a_round_is_recorded_exactly_once(tmp_path):
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        assert log.append(round_record(0, wall=Wall(total=1.0)))
        assert not log.append(round_record(0, wall=Wall(total=2.0)))
        with pytest.raises(MetricsError, match="round 0 is recorded already with other numbers"):
            log.append(round_record(0, policy_version=7))
        with pytest.raises(MetricsError, match="round 2 after round 0; expected 1"):
            log.append(round_record(2))
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1


def test_rounds_that_were_not_committed_can_be_dropped_and_run_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for t in range(4):
            log.append(round_record(t))
        assert log.truncate_after(1) == 2
        assert log.truncate_after(1) == 0
        log.append(round_record(2, policy_version=9))
    assert [r.policy_version for r in read_metrics(path)[0]] == [0, 1, 9]


def test_damage_before_the_last_line_is_named_with_its_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for t in range(3):
            log.append(round_record(t))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "{broken\n" + lines[2])
    with pytest.raises(MetricsError, match="line 2: not JSON"):
        MetricsLog(path)
    path.write_text(lines[0] + lines[2])
    with pytest.raises(MetricsError, match="line 2: round 2 follows round 0; expected 1"):
        read_metrics(path)


def test_a_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.append(round_record(0))
        before = path.read_bytes()
        real, calls = os.write, []

        def half_then_full(fd, data):
            calls.append(len(data))
            if len(calls) > 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(fd, data[:40])

        monkeypatch.setattr(os, "write", half_then_full)
        with pytest.raises(OSError, match="No space left"):
            log.append(round_record(1))
        monkeypatch.undo()
        assert path.read_bytes() == before
        assert log.append(round_record(1))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_cannot_hold_is_refused_where_it_is_made(value):
    with pytest.raises(ValueError, match="grad_norm"):
        TrainRecord(steps=1, grad_norm=value)


def test_unknown_keys_and_other_schemas_are_refused_by_name():
    data = round_record(0).to_json()
    with pytest.raises(RecordError, match=r"metrics.jsonl: not a round record(.|\n)*heldot"):
        RoundRecord.from_json(data | {"heldot": None}, "metrics.jsonl")
    with pytest.raises(RecordError, match=r"round record has schema 2; .* reads schema 1"):
        RoundRecord.from_json(data | {"schema": 2}, "metrics.jsonl")
    with pytest.raises(RecordError, match="found list; expected a run summary object"):
        Summary.from_json([], "summary.json")


def test_an_infrastructure_error_counts_neither_way():
    def episode(seed, success, outcome):
        return {
            "task_id": "t",
            "seed": seed,
            "success": success,
            "reward": 0.0,
            "steps": 3,
            "outcome": outcome,
        }

    evaluation = Evaluation.from_json(
        {
            "schema": 1,
            "round": 0,
            "harness_id": "h",
            "policy_version": 0,
            "episodes": [
                episode(0, True, "completed"),
                episode(1, False, "truncated"),
                episode(2, False, "infra_error"),
            ],
        },
        "heldout/0000.json",
    )
    assert (evaluation.result.successes, evaluation.result.n) == (1, 2)


@given(
    st.builds(
        lambda r, n, reward, loss: round_record(
            r,
            evolve=EvolveResult(n=n, success=None, reward=reward),
            train=TrainRecord(steps=1, loss=loss),
        ),
        st.integers(0, 10**6),
        st.integers(0, 10**6),
        st.floats(allow_nan=False, allow_infinity=False),
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_records_survive_a_round_trip_through_json(record):
    text = json.dumps(record.to_json(), allow_nan=False)
    assert RoundRecord.from_json(json.loads(text), "here") == record


def test_tensorboard_reads_the_scalars_and_forgets_rounds_that_are_run_again(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path)
    for t in range(3):
        board.write(round_record(t, heldout=SplitResult.of(10 + t, 20)))
    board.close()
    board = TensorBoard(tmp_path, first_round=2)
    board.write(round_record(2, heldout=SplitResult.of(20, 20)))
    board.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    found = [(e.step, round(e.value, 4)) for e in events.Scalars("heldout/success")]
    assert found == [(0, 0.5), (1, 0.55), (2, 1.0)]
    assert {tag for tag, _ in scalars(round_record(0))} <= set(events.Tags()["scalars"])


def test_importing_the_metrics_pulls_no_engine_and_no_tensorboard():
    code = (
        "import sys, coevo.metrics, coevo.compare, coevo.report; "
        "print([m for m in ('torch','ray','vllm','transformers','tensorboard') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
