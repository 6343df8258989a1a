"""Records, journal, budget and memory."""

from __future__ import annotations

import asyncio
import json

import pytest
from evolve_world import episode

from harness.edit import SetParam
from harness.evolve.budget import edit_budget
from harness.evolve.journal import Journal, JournalError
from harness.evolve.meta import EDIT_KINDS, Memory, edit_key
from harness.evolve.records import Episode, HistoryRecord, RecordError, TraceStep, decode, encode


def record(round: int = 0, kinds=("memory",), decision="reject", **more) -> HistoryRecord:
    return HistoryRecord(
        round, f"C-R{round}-01", "h", "p", kinds, "why", more.pop("key", "k"), decision, **more
    )


def test_a_record_survives_json():
    whole = episode(
        trace=(TraceStep(0, "go", "seen", ("invalid",), "ab"),), features={"room": "bath"}
    )
    data = json.loads(json.dumps(encode(whole)))
    assert decode(Episode, data) == whole
    memory = Memory().observe([whole]).judged([record()]).refuse("x", 2).ended(False)
    assert decode(Memory, json.loads(json.dumps(encode(memory)))) == memory


def test_another_schema_or_field_is_refused_by_name():
    data = encode(episode())
    with pytest.raises(RecordError, match="schema 9"):
        decode(Episode, data | {"schema": 9})
    with pytest.raises(RecordError, match="colour"):
        decode(Episode, data | {"colour": 1})


@pytest.mark.parametrize(
    ("b_max", "expected"), [(4, [4] * 8 + [3] * 5 + [2] * 7), (3, [3] * 10 + [2] * 10)]
)
def test_the_edit_budget_follows_the_published_schedule(b_max, expected):
    assert [edit_budget(t, 20, 1, b_max) for t in range(20)] == expected


def test_a_step_is_computed_once_across_restarts(tmp_path):
    calls = []

    async def compute():
        calls.append(1)
        return {"n": len(calls)}

    async def both(journal):
        first = await journal.once("step", {"a": 1}, compute)
        return first, await journal.once("step", {"a": 2}, compute)

    path = tmp_path / "evolve" / "journal.jsonl"
    assert asyncio.run(both(Journal(path))) == ({"n": 1}, {"n": 2})
    again = Journal(path)
    assert asyncio.run(both(again)) == ({"n": 1}, {"n": 2})
    assert (len(calls), again.answered) == (2, 2)


def test_a_torn_last_line_is_cut_off_and_a_broken_one_is_refused(tmp_path):
    path = tmp_path / "journal.jsonl"

    async def value():
        return 7

    asyncio.run(Journal(path).once("s", None, value))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"schema": 1, "key"')
    Journal(path)
    assert path.read_bytes() == whole
    path.write_bytes(b"nonsense\n" + whole)
    with pytest.raises(JournalError, match="line 1"):
        Journal(path)


def test_stable_means_the_last_four_runs_of_this_harness_passed():
    runs = [episode("a", n, "h", True) for n in range(4)]
    runs += [episode("b", n, "h", n > 0) for n in range(4)]
    runs += [episode("c", n, "h", True) for n in range(3)] + [episode("c", 9, "g", True)]
    runs += [episode("a", 9, "h", outcome="infra_error")]
    assert Memory().observe(runs).stable("h") == {"a"}


def test_runs_of_retired_harnesses_are_forgotten():
    runs = [episode("a", n, "h", True) for n in range(12)] + [episode("a", 0, "old", True)]
    memory = Memory().observe(runs).keep({"h"})
    assert [run.harness_id for run in memory.runs["a"]] == ["h"] * 8


def test_refused_edits_are_spent_until_they_are_forgiven():
    memory = Memory(history=(record(3, key="k"),)).refuse("s", 1)
    assert memory.spent("k", now=4)
    assert memory.spent("s", now=99)
    assert not memory.spent("k", now=7, retry_after=4)
    assert not Memory(history=(record(decision="deferred"),)).spent("k", now=1)


def test_reputation_and_hit_rate_per_kind():
    memory = Memory(
        history=(
            record(0, ("memory",), "apply", predicted=4, hits=1),
            record(1, ("memory",), "apply", predicted=4, hits=1, regressed=("t",)),
            record(1, ("config",), "reject"),
        )
    )
    assert memory.reputation() == {"config": 1 / 3, "memory": 3 / 4}
    assert memory.hit_rate("memory") == 0.25
    assert memory.held_back() == ["memory"]
    assert memory.last_regressions() == ("t",)
    assert set(memory.untried()) == set(EDIT_KINDS) - {"memory", "config"}


def test_equal_edits_have_equal_keys():
    assert edit_key([SetParam("m", "n", 1)]) == edit_key([SetParam("m", "n", 1.0)])
    assert edit_key([SetParam("m", "n", 1)]) != edit_key([SetParam("m", "n", 2)])
