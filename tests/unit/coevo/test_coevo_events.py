"""A run's events: appended, read back with those of its job, and summed up."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from coevo import events


def line(**value: object) -> str:
    return json.dumps({"schema": 1, **value}) + "\n"


def test_an_event_reads_back_with_its_time_attempt_and_fields(tmp_path: Path) -> None:
    events.begin(tmp_path)
    events.add(tmp_path, "worker_replaced", worker=1, episodes=3, reason="killed")
    events.end(tmp_path, 0, "done")
    found = events.events(tmp_path)
    assert [e.kind for e in found] == ["attempt_started", "worker_replaced", "attempt_ended"]
    assert [e.attempt for e in found] == [1, 1, 1]
    assert found[0].fields["process"] == os.getpid()
    assert found[1].fields == {"worker": 1, "episodes": 3, "reason": "killed"}
    assert found[0].when.endswith("+00:00")
    assert events.summary(found) == "1 attempt, 1 worker replaced"


def test_a_run_without_events_has_none(tmp_path: Path) -> None:
    assert events.events(tmp_path) == []
    assert events.attempts([]) == []


def test_work_since_the_last_phase_of_a_killed_attempt_is_lost(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(
        line(time="2026-01-01T00:00:00+00:00", kind="attempt_started", attempt=1)
        + line(time="2026-01-01T00:01:00+00:00", kind="phase", attempt=1, key="0/rollout")
    )
    os.utime(tmp_path / "events.jsonl", (0, 1767225600 + 90))  # 30 s later: the last sign of life
    events.begin(tmp_path)
    events.resumed(tmp_path, ["0/measure", "0/rollout"])
    found = events.events(tmp_path)
    told = found[-1].fields
    assert (told["key"], told["phases"]) == ("0/rollout", 2)
    assert (told["killed"], told["lost_s"]) == (True, 30.0)
    assert told["down_s"] > 0
    first, second = events.attempts(found)
    assert (first.code, first.reason, first.phases, first.lost_s) == (None, "killed", 1, 30.0)
    assert (second.ended, second.lost_s) == (None, None)
    assert events.summary(found) == "2 attempts, 1 killed, 30 s of work lost"


def test_an_attempt_that_stopped_between_two_phases_lost_nothing(tmp_path: Path) -> None:
    events.begin(tmp_path)
    events.resumed(tmp_path, [])  # nothing to tell of a first attempt
    events.add(tmp_path, "phase", key="0/measure", wall_s=1.0)
    events.end(tmp_path, 75, "stopped between two phases (SIGUSR1)")
    events.begin(tmp_path)
    events.resumed(tmp_path, ["0/measure"])
    found = events.events(tmp_path)
    assert [e.kind for e in found].count("resumed") == 1
    assert found[-1].fields["killed"] is False
    assert found[-1].fields["lost_s"] < 5
    assert events.attempts(found)[0].code == 75


def test_starts_and_requeues_of_the_job_stand_among_the_runs_events(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(
        line(time="2026-01-01T00:00:03.200+00:00", kind="attempt_started", attempt=1)
        + line(time="2026-01-01T00:00:09.500+00:00", kind="attempt_ended", attempt=1, code=75,
               reason="stopped", lost_s=0.0)
    )  # fmt: skip
    job = {"job": "7", "attempt": 0, "progress": 2}
    (tmp_path / "attempts.jsonl").write_text(
        line(event="start", time=1767225600, nodes="n[1-2]", **job)
        + line(event="end", time=1767225609, code="75", stopped="USR1", decision="requeue", **job)
    )
    found = events.events(tmp_path)
    assert [e.kind for e in found] == [
        "job_started", "attempt_started", "attempt_ended", "requeued",
    ]  # fmt: skip
    assert {e.attempt for e in found} == {1}
    assert found[-1].fields["stopped"] == "USR1"
    assert events.summary(found) == "1 attempt, 1 requeue"


def test_a_line_torn_by_a_kill_is_left_out_and_the_next_one_stands(tmp_path: Path) -> None:
    events.begin(tmp_path)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"schema": 1, "time": "2026')
    assert len(events.events(tmp_path)) == 1
    events.add(tmp_path, "phase", key="0/measure", wall_s=1.0)
    assert [e.kind for e in events.events(tmp_path)] == ["attempt_started", "phase"]


@pytest.mark.parametrize("bad", ["{broken}\n", line(time="noon", kind="phase", attempt=1)])
def test_a_damaged_line_is_an_event_itself_and_stops_no_run(bad: str, tmp_path: Path) -> None:
    events.begin(tmp_path)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(bad)
    events.end(tmp_path, 0, "done")
    found = events.events(tmp_path)
    assert [e.kind for e in found] == ["attempt_started", "damaged", "attempt_ended"]
    assert found[1].fields["file"].endswith("events.jsonl line 2")


def test_a_kind_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(events.EventError, match="'phases'; expected one of: attempt_started"):
        events.add(tmp_path, "phases")  # type: ignore[arg-type]
