"""The held-out split stays with the evaluator, and what it reads is on record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coevo.config import load_config
from coevo.evidence import task_key
from coevo.rollouts import TaskSource, named
from coevo.sealed import SealedReads
from rollout.task import SealedRead, SealedSplitError

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = load_config(ROOT / "configs" / "quickstart.yaml").environment


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_evolution_cannot_have_a_held_out_task_rolled_out(tmp_path: Path) -> None:
    source = TaskSource(ENVIRONMENT, 0, SealedReads(tmp_path / "reads.jsonl").add)
    key = source.splits.key()
    batch = {task_key(task.id): task for task in source.batch(0, 8)}
    assert named(batch, list(batch)) == list(batch.values())
    (held_out,) = source.splits.sealed("heldout", 1, key, "evaluator", {"round": 0})
    with pytest.raises(SealedSplitError, match="none of the 8"):
        named(batch, [task_key(held_out.id)])


def test_a_task_source_hands_its_held_out_tasks_to_nobody_but_the_evaluator() -> None:
    source = TaskSource(ENVIRONMENT, 0)
    with pytest.raises(SealedSplitError, match="'heldout' is sealed"):
        source.splits.tasks("heldout")
    with pytest.raises(SealedSplitError, match="journals no sealed reads"):
        source.splits.sealed("heldout", 1, source.splits.key(), "evaluator", {})


def test_each_read_is_one_line_with_its_reader_and_no_clock(tmp_path: Path) -> None:
    log = SealedReads(tmp_path / "reads.jsonl")
    source = TaskSource(ENVIRONMENT, 0, log.add)
    key = source.splits.key()
    for number in range(2):
        source.splits.sealed("heldout", 5, key, "evaluator", {"round": number})
    first, second = lines(log.path)
    assert first == {
        "schema": 1,
        "split": "heldout",
        "n": 5,
        "reader": "evaluator",
        "about": {"round": 0},
        "tasks": second["tasks"],
    }
    assert second["about"] == {"round": 1}


def test_a_line_that_a_kill_tore_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "reads.jsonl"
    SealedReads(path).add(SealedRead("ood", 1, "evaluator", {}, "0" * 64))
    with path.open("ab") as file:
        file.write(b'{"schema": 1, "spl')
    SealedReads(path).add(SealedRead("ood", 2, "evaluator", {}, "0" * 64))
    whole = path.read_text().splitlines()
    assert [json.loads(whole[i])["n"] for i in (0, 2)] == [1, 2]
