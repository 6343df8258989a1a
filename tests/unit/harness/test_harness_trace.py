"""Traces: levels, caps, and what is taken from a child."""

from __future__ import annotations

import json

import pytest

from harness.events import Message
from harness.host import ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.trace import Trace, TraceError

CALL = ("before_model", "menu", "pass", "", 1500)


def filled(level: str, steps: int = 3, **options: int) -> Trace:
    trace = Trace("r", level, **options)  # type: ignore[arg-type]
    history: tuple[Message, ...] = ()
    for step in range(steps):
        trace.begin(step)
        if trace.record:
            trace.record(CALL)
        history += (Message("user", f"see {step}"),)
        trace.model(ModelRequest(step, history), ModelReply(f"say {step}"))
        history += (Message("assistant", f"say {step}"),)
        trace.tool(ToolRequest(step, "c", "act", {"n": step}), ToolReply("ok", choices=("a",)))
    trace.end("completed", "", steps)
    return trace


def test_levels_hold_what_they_say() -> None:
    off, agent, full = (filled(level).to_json() for level in ("off", "agent", "full"))
    assert "agent" not in off
    assert "harness" not in agent
    assert len(agent["agent"]) == 6
    assert full["harness"] == [[s, "before_model", "menu", "pass", 1.5, ""] for s in range(3)]
    with pytest.raises(ValueError, match="off, agent, full"):
        Trace("r", "all")  # type: ignore[arg-type]


def test_messages_are_written_once() -> None:
    models = [e for e in filled("agent").to_json()["agent"] if e["kind"] == "model"]
    assert [(e["kept"], len(e["messages"])) for e in models] == [(0, 1), (1, 2), (3, 2)]


def test_long_fields_are_cut_and_lone_surrogates_replaced() -> None:
    trace = Trace("r", "agent", max_field=10)
    trace.model(ModelRequest(0, (Message("user", "x" * 100),)), ModelReply("\ud800"))
    (entry,) = trace.to_json()["agent"]
    assert entry["messages"][0]["content"] == "x" * 10 + " … [90 characters cut]"
    assert entry["reply"]["content"] == "?"


def test_a_long_trace_keeps_both_ends_and_says_what_is_missing() -> None:
    out = filled("full", steps=200, max_total=4000).to_json()
    assert len(json.dumps(out)) < 10_000
    assert out["agent"][0]["step"] == 0
    assert out["agent"][-1]["step"] == 199
    assert out["dropped"]["agent"] == 400 - len(out["agent"]) > 0
    assert out["dropped"]["harness"] == 200 - len(out["harness"]) > 0


def test_recording_stops_at_a_number_of_calls() -> None:
    out = filled("full", steps=100, max_calls=20).to_json()
    assert len(out["harness"]) < 20
    assert out["dropped"]["harness_stopped"] is True


def test_a_childs_harness_trace_is_adopted_as_it_was_sent() -> None:
    sent = json.loads(json.dumps(filled("full").harness_json()))
    trace = Trace("r", "full")
    trace.adopt(sent)
    assert trace.to_json()["harness"] == filled("full").to_json()["harness"]


GOOD = [0, "before_model", "menu", "pass", 1.5, ""]


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        {"records": [GOOD]},
        {"records": [GOOD[:5]], "dropped": 0, "stopped": False},
        {"records": [[*GOOD[:3], "won", 1.5, ""]], "dropped": 0, "stopped": False},
        {"records": [[0, "hook", *GOOD[2:]]], "dropped": 0, "stopped": False},
        {"records": [[*GOOD[:5], "x" * 10_000]], "dropped": 0, "stopped": False},
        {"records": [GOOD] * 200_000, "dropped": 0, "stopped": False},
        {"records": [GOOD], "dropped": True, "stopped": False},
    ],
)
def test_a_malformed_harness_trace_is_refused(bad: object) -> None:
    with pytest.raises(TraceError):
        Trace("r", "full").adopt(bad)
