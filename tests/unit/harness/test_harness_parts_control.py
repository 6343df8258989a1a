"""Built-in parts of control, observation and training (D7, D8, D9), each in an episode."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from part_bench import CHAT, TEXT, Scripted, calls, episode, part

from harness.build import BuildError, build
from harness.bundle import Bundle
from harness.events import ToolCallSpec
from harness.host import ModelReply, ToolReply
from harness.processors.parse_repair import action_in, calls_in, mend
from harness.processors.token_capture import trainable_roles
from harness.processors.tool_call_correction import input_problems
from harness.runloop import BLOCKED
from harness.trace import Trace

CALL = {"name": "read", "arguments": {"path": "a", "all": True, "n": None}}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(CALL),
        "<tool_call>" + json.dumps(CALL) + "</tool_call>",
        "<tool_call>\n" + json.dumps(CALL),
        "```json\n" + json.dumps(CALL) + "\n```",
        "<tool_call>{'name': 'read', 'arguments': {'path': 'a', 'all': True, 'n': None}}</tool_call>",
        '{name: "read", arguments: {path: "a", "all": true, "n": null,},}',
        '{"name": "read", "arguments": {"path": "a", "all": true, "n": null',
        "{“name”: “read”, “arguments”: {“path”: “a”, “all”: true, “n”: null}}",
        json.dumps({"function": CALL}),
        json.dumps({**CALL, "arguments": json.dumps(CALL["arguments"])}),
        json.dumps(CALL) + " and that is all",
    ],
)
def test_a_call_is_read_out_of_text(text: str) -> None:
    content, found = calls_in(text, {"read"}, "r")
    assert found == (ToolCallSpec("r-0", "read", CALL["arguments"]),)  # type: ignore[arg-type]
    assert content == ""


def test_text_around_calls_is_kept_and_several_are_found() -> None:
    text = 'I look. <tool_call>{"name": "a", "arguments": {}}</tool_call> and\n' * 2
    content, found = calls_in(text, set(), "r")
    assert [(c.call_id, c.name) for c in found] == [("r-0", "a"), ("r-1", "a")]
    assert content == "I look.  and\nI look.  and"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "look",
        "{",
        '{"answer": 3}',
        '{"name": "Ann"}',
        "[1, 2]",
        "<tool_call>x</tool_call>",
        "{" * 500,
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert calls_in(text, {"read"}, "r") == (text, ())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_sound_json_is_read_as_it_is(value: Any) -> None:
    assert mend(json.dumps(value)) == value


@given(st.text(max_size=80))
def test_no_text_breaks_the_repair(text: str) -> None:
    calls_in(text, {"read"}, "r")
    calls_in("{" + text, {"read"}, "r")
    action_in(text, ("go", "look"))


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("look", "look"),
        (" Go to  Desk 1. ", "go to desk 1"),
        ("```\nlook\n```", "look"),
        ("I should look.\nAction: go to desk 1", "go to desk 1"),
        ('"look"', "look"),
        ("Action: dance", "dance"),
        ("I dance.", "I dance."),
    ],
)
def test_a_text_action_is_found_in_a_chatty_answer(text: str, action: str) -> None:
    assert action_in(text, ("look", "go to desk 1")) == action


def test_parse_repair_turns_text_into_a_call_that_is_carried_out() -> None:
    host = Scripted(['<tool_call>{"name": "read", "arguments": {"path": "a"}}</tool_call>', "done"])
    result = episode(host, part("parse_repair:ParseRepair", "output_plumbing"))
    assert result.output == "done"
    assert [(c.name, c.input) for c in host.called] == [("read", {"path": "a"})]


def test_parse_repair_maps_an_action_to_an_admitted_one() -> None:
    host = Scripted(["Action: LOOK"])
    repair = part("parse_repair:ParseRepair", "output_plumbing")
    episode(host, repair, task=TEXT, observation=ToolReply("a room", choices=("look",)), steps=1)
    assert host.called[0].input == {"command": "look"}


CORRECTION = part("tool_call_correction:ToolCallCorrection", "output_plumbing")


def test_a_misspelt_tool_is_put_right() -> None:
    host = Scripted([calls(("Raed", {"path": "a"})), "done"])
    episode(host, CORRECTION)
    assert host.called[0].name == "read"


def test_a_bad_input_is_told_back_and_not_carried_out() -> None:
    host = Scripted([calls(("read", {"file": 1}), ("dance", {})), "done"])
    episode(host, CORRECTION)
    assert host.called == []
    assert host.last(1) == (
        f"{BLOCKED}\n[read was not called: missing path; unknown file; it takes path, lines]\n"
        "[dance was not called: there is no such tool; there are read]"
    )


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"path": "a"}, []),
        ({"path": 1}, ["path is int, string is expected"]),
        ({"path": "a", "lines": 2.5}, ["lines is float, integer is expected"]),
        ({"path": "a", "lines": True}, ["lines is bool, integer is expected"]),
        ({}, ["missing path"]),
    ],
)
def test_inputs_are_checked_by_the_schema(value: dict[str, Any], problem: list[str]) -> None:
    assert input_problems(value, CHAT.tools[0].parameters) == problem


def guard(**params: object) -> object:
    return part("repeated_action_guard:RepeatedActionGuard", "control_flow", **params)


def test_a_call_that_gives_nothing_new_is_blocked_and_told() -> None:
    same = calls(("read", {"path": "a"}))
    host = Scripted([same] * 4 + ["done"])
    episode(host, guard(), steps=6)
    assert len(host.called) == 2
    assert host.last(3) == (f"{BLOCKED}\n[read gave the same result 2 times; try something else]")


def test_something_new_in_between_starts_the_count_again() -> None:
    a, b = calls(("read", {"path": "a"})), calls(("read", {"path": "b"}))
    host = Scripted([a, b, a, b, a, "done"], ["x", "y", "x", "z", "x"])
    episode(host, guard(repeats=2), steps=6)
    assert len(host.called) == 5


def test_a_run_that_only_repeats_is_stopped() -> None:
    host = Scripted([calls(("read", {"path": "a"}))] * 9)
    result = episode(host, guard(stop_after=2), steps=9)
    assert (result.status, result.steps) == ("truncated", 4)
    assert "2 repeated calls" in result.reason


def budget(**params: object) -> object:
    return part("budget_guard:BudgetGuard", "control_flow", **params)


def test_what_is_left_is_told_from_the_given_share_on() -> None:
    host = Scripted([calls(("read", {"path": "a"}))] * 4)
    episode(host, budget(), steps=4)
    assert host.last(1) == "fine"
    assert host.last(2) == "fine\n[2 of 4 steps left]"
    assert host.last(3) == "fine\n[1 of 4 steps left]"


def test_its_own_budgets_end_the_run_before_the_model_is_asked() -> None:
    host = Scripted([calls(("read", {"path": "a"}))] * 4)
    result = episode(host, budget(max_steps=2, warn_below=0), steps=4)
    assert (result.status, len(host.main)) == ("truncated", 2)
    spent = ModelReply("", calls(("read", {"path": "a"})).tool_calls, "tool_calls", 60, 40)
    host = Scripted([spent] * 4)
    result = episode(host, budget(max_tokens=150, warn_below=1), steps=4)
    assert result.reason == "budget_guard: 200 tokens used of 150"
    assert host.last(1) == "fine\n[3 of 4 steps left]\n[50 of 150 tokens left]"


def check(**params: object) -> object:
    return part("completion_check:CompletionCheck", "control_flow", **params)


@pytest.mark.parametrize(
    ("params", "first", "reason"),
    [
        ({}, " ", "the answer has 0 characters, at least 1 are expected"),
        ({"pattern": "ANSWER"}, "42", "the answer does not match ANSWER"),
        ({"needs_tools": ["read"]}, "42", "read was not called successfully"),
        ({}, ModelReply("4", finish_reason="length"), "the answer was cut off at the token limit"),
    ],
)
def test_an_unfinished_answer_is_handed_back(params: Any, first: Any, reason: str) -> None:
    host = Scripted([first, calls(("read", {"path": "a"})), "ANSWER 42"])
    result = episode(host, check(hint="Say it.", **params), steps=4)
    assert (result.status, result.output) == ("completed", "ANSWER 42")
    assert host.last(1) == f"You are in a room.\n[Not finished: {reason}. Say it.]"


def test_after_some_rejections_the_answer_is_taken() -> None:
    host = Scripted(["a", "b", "c"])
    result = episode(host, check(pattern="x", max_rejections=2), steps=5)
    assert (result.status, result.output) == ("completed", "c")


def test_a_pattern_that_is_none_is_refused_when_the_bundle_is_built() -> None:
    bad = part("completion_check:CompletionCheck", "control_flow", pattern="(")
    with pytest.raises(BuildError, match=r"params.pattern.*not a regular expression"):
        build(Bundle((bad,)), allow_own_code=False)


def self_check(**params: object) -> object:
    return part("self_check:SelfCheck", "control_flow", **params)


def test_a_failed_self_check_hands_the_answer_back_once() -> None:
    host = Scripted(["41", "42"], roles={"judge": ["FAIL: it is one more."]})
    result = episode(host, self_check())
    assert (result.status, result.output) == ("completed", "42")
    assert host.last(1).endswith("[A check of your answer found: it is one more.]")
    (judged,) = [request for request in host.asked if request.role == "judge"]
    assert judged.messages[1].content == "Task:\nfind the lamp\n\nAnswer:\n41"


@pytest.mark.parametrize("verdict", ["PASS", "**Pass**, fine", "no idea"])
def test_a_passed_or_unclear_self_check_lets_the_answer_go(verdict: str) -> None:
    trace = Trace("r", "full")
    host = Scripted(["41"], roles={"judge": [verdict]})
    assert episode(host, self_check(), trace=trace).output == "41"
    notes = trace.to_json()["notes"]
    assert bool(notes) is (verdict == "no idea")


def test_a_plan_is_made_first_and_read_at_every_step() -> None:
    host = Scripted([calls(("read", {"path": "a"})), "done"], roles={"planner": ["1. look"]})
    episode(host, part("planning:Planning", "control_flow"))
    assert [request.role for request in host.asked] == ["planner", "main", "main"]
    assert host.last(0) == "You are in a room.\n[plan]\n1. look"
    assert host.last(1) == "fine\n[plan]\n1. look"


def test_a_plan_is_renewed_where_it_is_asked_for() -> None:
    host = Scripted([calls(("read", {"path": "a"}))] * 4, roles={"planner": ["P0", "P2"]})
    episode(host, part("planning:Planning", "control_flow", every=2), steps=4)
    assert [host.last(i).split("\n")[-1] for i in range(4)] == ["P0", "P0", "P2", "P2"]
    assert "P0" in [r for r in host.asked if r.role == "planner"][1].messages[1].content


def sub_agent(**params: object) -> object:
    return part("sub_agent:SubAgent", "subagent", **params)


def test_a_sub_agent_works_with_its_own_context_and_tools() -> None:
    nested = [calls(("read", {"path": "b"}), ("delegate", {"task": "x"})), "it is on the desk"]
    host = Scripted([calls(("delegate", {"task": "find it"})), "done"], roles={"subagent": nested})
    episode(host, sub_agent(tools=["read"]))
    inner = [request for request in host.asked if request.role == "subagent"]
    assert [m.content for m in inner[0].messages][1:] == ["find it"]
    assert [tool.name for tool in inner[0].tools] == ["read"]
    assert [m.content for m in inner[1].messages[-2:]] == [
        "fine",
        "there is no tool 'delegate' here",
    ]
    assert host.last(1) == "it is on the desk"
    assert [request.input for request in host.called] == [{"path": "b"}]


def test_a_sub_agent_ends_after_its_turns_and_wants_a_task() -> None:
    nested = [calls(("read", {"path": "b"}))] * 2
    turns = [calls(("delegate", {"task": "find it"})), calls(("delegate", {})), "done"]
    host = Scripted(turns, roles={"subagent": nested})
    episode(host, sub_agent(tools=["read"], max_turns=2))
    assert host.last(1) == "(the assistant did not finish within 2 turns)"
    assert host.last(2).startswith("`task` is empty")


def test_a_sub_agent_that_ends_the_environment_ends_the_run() -> None:
    host = Scripted(
        [calls(("delegate", {"task": "find it"}))],
        [ToolReply("won", done=True)],
        {"subagent": [calls(("read", {"path": "b"}))]},
    )
    result = episode(host, sub_agent(tools=["read"]))
    assert (result.status, result.reason) == ("completed", "the environment ended the episode")


def test_a_tool_that_the_task_lacks_is_a_harness_error() -> None:
    result = episode(Scripted(), sub_agent(tools=["reed"]))
    assert result.status == "harness_error"
    assert "names reed" in result.reason


def test_marks_are_noted_in_the_trace() -> None:
    trace = Trace("r", "full")
    host = Scripted([calls(("read", {"path": "a"})), "found"], ["Error 17: no lamp"])
    mark = part("trace_mark:TraceMark", "output_plumbing", marks={"error": r"Error \d+"})
    episode(host, mark, trace=trace)
    assert trace.to_json()["notes"] == [[0, "part", "error: Error 17"]]


def test_the_capture_mark_says_which_roles_train() -> None:
    mark = part("token_capture:TokenCapture", "config", roles=["main", "planner"])
    assert trainable_roles(Bundle((mark,))) == {"main", "planner"}
    assert trainable_roles(Bundle()) is None
    assert episode(Scripted(["done"]), mark).status == "completed"
