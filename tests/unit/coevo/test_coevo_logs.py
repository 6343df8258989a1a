"""The structured log of a run: every record with its round, phase and actor; faults are events."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

from coevo import events, logs
from rollout.logs import Kept, replay


def written(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def test_records_carry_run_round_phase_actor_and_message(tmp_path: Path) -> None:
    log = logging.getLogger("coevo.loop")
    with logs.logging_to(tmp_path):
        log.info("before")
        with logs.within("3/rollout"):
            log.warning("late by %d s", 7, extra={"actor": "worker 1"})
        with logs.within("repeat/2"):
            log.info("again")
    log.warning("after")
    first, second, third = written(tmp_path)
    assert (first["round"], first["phase"], first["actor"]) == (None, None, "driver")
    assert first["run"] == tmp_path.name
    assert (second["round"], second["phase"], second["actor"]) == (3, "rollout", "worker 1")
    assert (second["level"], second["message"]) == ("warning", "late by 7 s")
    assert third["phase"] == "repeat/2"


def test_phases_side_by_side_and_their_threads_keep_apart(tmp_path: Path) -> None:
    log = logging.getLogger("trainer.group")

    async def phase(key: str) -> None:
        with logs.within(key):
            await asyncio.sleep(0)
            await asyncio.to_thread(log.info, key)

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(phase("0/evolve"))
            group.create_task(phase("0/train"))

    with logs.logging_to(tmp_path):
        asyncio.run(both())
    assert {(line["phase"], line["message"]) for line in written(tmp_path)} == {
        ("evolve", "0/evolve"), ("train", "0/train"),
    }  # fmt: skip


def test_a_record_that_carries_an_event_stands_among_the_events(tmp_path: Path) -> None:
    with logs.logging_to(tmp_path):
        logging.getLogger("rollout.scheduler").warning(
            "replaced", extra={"event": "worker_replaced", "fields": {"worker": 1}}
        )
    (event,) = events.events(tmp_path)
    assert (event.kind, event.fields) == ("worker_replaced", {"worker": 1})


def test_a_bug_is_logged_with_its_traceback(tmp_path: Path) -> None:
    with logs.logging_to(tmp_path):
        try:
            raise ZeroDivisionError("a bug")
        except ZeroDivisionError:
            logging.getLogger("coevo").error("ends", exc_info=True)
    assert "ZeroDivisionError: a bug" in written(tmp_path)[0]["traceback"]


def test_what_an_actor_kept_is_written_under_its_name_with_its_own_time(tmp_path: Path) -> None:
    kept = Kept()
    for name, level in (("rollout.worker", 20), ("urllib3", 20), ("urllib3", 30)):
        kept.handle(logging.makeLogRecord({"name": name, "levelno": level, "levelname": "X",
                                           "msg": "said", "created": 0.0}))  # fmt: skip
    with logs.logging_to(tmp_path):
        replay(kept.fetch(), "rank 1")
    assert kept.fetch() == []
    lines = written(tmp_path)
    assert [line["logger"] for line in lines] == ["rollout.worker", "urllib3"]
    assert {(line["actor"], line["time"]) for line in lines} == {
        ("rank 1", "1970-01-01T00:00:00.000+00:00")
    }


def test_another_logging_set_up_is_left_as_it_was(tmp_path: Path) -> None:
    root, own = logging.getLogger(), logging.getLogger("coevo")
    before = (list(root.handlers), own.level)
    with logs.logging_to(tmp_path):
        assert own.level == logging.INFO
    assert (list(root.handlers), own.level) == before
