"""Traces: levels, caps, and what is taken from a child."""

from __future__ import annotations

import json

import pytest

from harness.events import Message
from harness.host import ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.trace import Trace, TraceError

CALL = (("before_model", ("menu",)), 1000, 2500)


def filled(level: str, steps: int = 3, **options: int) -> Trace:
    trace = Trace("r", level, **options)  # type: ignore[arg-type]
    history: tuple[Message, ...] = ()
    for step in range(steps):
        trace.begin(step)
        if trace.record:
            for item in CALL:
                trace.record(item)
        if trace.function:
            trace.function(("best", "1, 2", "2", 700))
        trace.note("menu", f"note {step}")
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
    assert full["functions"] == [[s, "best", "1, 2", "2", 0.7] for s in range(3)]
    assert full["notes"] == [[s, "menu", f"note {s}"] for s in range(3)]
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
    assert len(json.dumps(out)) < 20_000
    assert out["agent"][0]["step"] == 0
    assert out["agent"][-1]["step"] == 199
    assert out["dropped"]["agent"] == 400 - len(out["agent"]) > 0
    assert out["dropped"]["harness"] > 200 - len(out["harness"]) > 0


def test_recording_stops_at_a_number_of_calls() -> None:
    out = filled("full", steps=100, max_calls=20).to_json()
    assert len(out["harness"]) < 20
    assert out["dropped"]["harness_stopped"] is True


def test_a_childs_harness_trace_is_adopted_as_it_was_sent() -> None:
    line = json.loads(json.dumps(filled("full").harness_json()))
    trace = Trace("r", "full")
    trace.adopt(line)
    assert trace.to_json()["harness"] == filled("full").to_json()["harness"]


GOOD = [0, "before_model", "menu", "pass", 1.5, ""]


def sent(**changes: object) -> dict[str, object]:
    good = {"records": [GOOD], "functions": [], "notes": [], "dropped": 0, "stopped": False}
    return good | changes


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        {"records": [GOOD]},
        sent(records=[GOOD[:5]]),
        sent(records=[[*GOOD[:3], "won", 1.5, ""]]),
        sent(records=[[0, "hook", *GOOD[2:]]]),
        sent(records=[[*GOOD[:5], "x" * 10_000]]),
        sent(records=[GOOD] * 200_000),
        sent(dropped=True),
        sent(more=[]),
        sent(functions=[[0, "f", "", ""]]),
        sent(functions=[[0, "f", "", "x" * 10_000, 1.0]]),
        sent(functions=[[0, "f", "", "", 1.0]] * 50_000),
        sent(notes=[[0, "c", 1]]),
        sent(notes=[[0, "c", "x"]] * 5_000),
    ],
)
def test_a_malformed_harness_trace_is_refused(bad: object) -> None:
    with pytest.raises(TraceError):
        Trace("r", "full").adopt(bad)
