"""The pipeline feeds events through processors and lets none break its hook's contract."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.contract import ALLOWED, READ_ONLY
from harness.events import (
    HOOKS,
    BeforeModel,
    Message,
    ModelResponse,
    StepEnd,
    StepStart,
    TaskEnd,
    TaskStart,
    TaskView,
    ToolCall,
    ToolCallSpec,
    ToolResult,
)
from harness.harness_trace import expand
from harness.host import HostError
from harness.jsonvalue import FrozenDict
from harness.pipeline import (
    MAX_YIELDS,
    ContractViolation,
    Pipeline,
    PipelineError,
    ProcessorError,
)
from harness.processor import Interrupt, Processor

USER = Message("user", "hello", ("a", "b"))
MESSAGES = (Message("system", "s"), Message("user", "first"), Message("assistant", "x"), USER)
EVENTS: dict[str, Any] = {
    "task_start": TaskStart(TaskView("do it", "env")),
    "step_start": StepStart(0, MESSAGES[1:]),
    "before_model": BeforeModel(0, MESSAGES),
    "after_model": ModelResponse(0, "hi", (ToolCallSpec("1", "t", FrozenDict(x=1)),)),
    "before_tool": ToolCall(0, "1", "t", FrozenDict(x=FrozenDict(y=1))),
    "after_tool": ToolResult(0, "1", "t", "fine", choices=("a",)),
    "step_end": StepEnd(0, False, MESSAGES[1:]),
    "task_end": TaskEnd(3, "completed", "", "out"),
}


@dataclass(frozen=True)
class Bound:
    id: str
    processor: Processor


def processor(hook: str, method: Callable[..., Any]) -> Processor:
    cls = type("Made", (Processor,), {hook: lambda self, event, ctx: None})
    setattr(cls, hook, method)
    return cls()


def chain(hook: str, *methods: Callable[..., Any]) -> Pipeline:
    return Pipeline([Bound(f"p{i}", processor(hook, m)) for i, m in enumerate(methods)])


def run(hook: str, *methods: Callable[..., Any], event: Any = None, record: Any = None) -> list:
    event = EVENTS[hook] if event is None else event
    return asyncio.run(chain(hook, *methods).run(hook, event, lambda _: None, record))  # type: ignore[arg-type]


def yields(*events: Any) -> Callable[..., Any]:
    def method(self: Any, event: Any, ctx: Any) -> Iterator[Any]:
        yield from events

    return method


def maps(change: Callable[[Any], Any]) -> Callable[..., Any]:
    def method(self: Any, event: Any, ctx: Any) -> Iterator[Any]:
        yield change(event)

    return method


def raises(error: BaseException) -> Callable[..., Any]:
    def method(self: Any, event: Any, ctx: Any) -> Iterator[Any]:
        raise error
        yield

    return method


passes = maps(lambda event: event)


@pytest.mark.parametrize("hook", HOOKS)
def test_an_event_passes_unchanged_at_every_hook(hook: str) -> None:
    assert run(hook, passes, passes) == [EVENTS[hook]]
    assert run(hook)[0] is EVENTS[hook]


@pytest.mark.parametrize(
    ("hook", "changes"),
    [
        ("task_start", {"system_prompt": "You are careful."}),
        ("step_start", {"history": (USER,)}),
        ("after_model", {"content": "new", "tool_calls": ()}),
        ("before_tool", {"input": {"x": [1, 2]}, "approved": False}),
        ("after_tool", {"content": "new", "is_error": True, "choices": ("z",)}),
    ],
)
def test_a_hook_transforms_what_it_may(hook: str, changes: dict[str, Any]) -> None:
    (event,) = run(hook, maps(lambda e: replace(e, **changes)))
    for name, value in changes.items():
        assert getattr(event, name) == value or name == "input"
    assert set(changes) <= set(ALLOWED[hook])


@pytest.mark.parametrize(
    ("hook", "changes", "field"),
    [
        ("task_start", {"task": TaskView("other", "env")}, "task"),
        ("step_start", {"step": 1}, "step"),
        ("before_model", {"step": 9}, "step"),
        ("after_model", {"finish_reason": "length"}, "finish_reason"),
        ("after_model", {"sampled_tokens": 0.0}, "sampled_tokens"),
        ("before_tool", {"name": "other"}, "name"),
        ("before_tool", {"call_id": "2"}, "call_id"),
        ("after_tool", {"done": True}, "done"),
        ("step_end", {"done": True}, "done"),
        ("step_end", {"history": ()}, "history"),
        ("task_end", {"status": "truncated"}, "status"),
        ("task_end", {"output": "better"}, "output"),
    ],
)
def test_a_field_that_the_hook_does_not_allow_is_a_violation(
    hook: str, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(ContractViolation) as caught:
        run(hook, passes, maps(lambda e: replace(e, **changes)))
    assert (caught.value.processor, caught.value.hook, caught.value.field) == ("p1", hook, field)
    assert "may change" in str(caught.value)


@pytest.mark.parametrize(
    ("hook", "changes", "field"),
    [
        ("task_start", {"system_prompt": None}, "system_prompt"),
        ("task_start", {"system_prompt": "\ud800"}, "system_prompt"),
        ("step_start", {"history": [USER]}, "history"),
        ("step_start", {"history": (Message("system", "x"), USER)}, "history[0].role"),
        ("step_start", {"history": (Message("assistant", "x"),)}, "history"),
        ("step_start", {"history": (replace(USER, content=7),)}, "history[0].content"),
        ("after_model", {"content": b"x"}, "content"),
        ("after_model", {"tool_calls": [1]}, "tool_calls"),
        ("after_model", {"tool_calls": (ToolCallSpec("1", "t", {"x": float("nan")}),)}, None),
        ("before_tool", {"input": {"x": object()}}, "input"),
        ("before_tool", {"input": {1: 2}}, "input"),
        ("before_tool", {"input": "ls"}, "input"),
        ("before_tool", {"approved": 1}, "approved"),
        ("after_tool", {"choices": ["a"]}, "choices"),
        ("after_tool", {"is_error": "no"}, "is_error"),
    ],
)
def test_a_value_of_the_wrong_type_is_a_violation(
    hook: str, changes: dict[str, Any], field: str | None
) -> None:
    with pytest.raises(ContractViolation) as caught:
        run(hook, maps(lambda e: replace(e, **changes)))
    if field is not None:
        assert caught.value.field == field


@pytest.mark.parametrize("wrong", [None, "text", EVENTS["task_end"], object()])
def test_another_type_of_event_is_a_violation(wrong: object) -> None:
    with pytest.raises(ContractViolation, match="yields ModelResponse events"):
        run("after_model", yields(wrong))


def test_before_model_may_change_the_last_user_message_and_append_one() -> None:
    def change(event: BeforeModel) -> BeforeModel:
        last = replace(event.messages[-1], content="menu", choices=())
        return replace(event, messages=(*event.messages[:-1], last, Message("user", "hint")))

    (event,) = run("before_model", maps(change))
    assert [m.content for m in event.messages] == ["s", "first", "x", "menu", "hint"]


def test_before_model_may_change_an_answer_of_a_tool_that_stands_last() -> None:
    event = BeforeModel(
        0, (USER, Message("assistant", "x"), Message("tool", "r", tool_call_id="1"))
    )
    changed = replace(event.messages[-1], content="r2")
    (out,) = run(
        "before_model",
        maps(lambda e: replace(e, messages=(*e.messages[:-1], changed))),
        event=event,
    )
    assert out.messages[-1].content == "r2"


@pytest.mark.parametrize(
    "messages",
    [
        MESSAGES[:-1],
        (*MESSAGES, Message("user", "1"), Message("user", "2")),
        (*MESSAGES, Message("assistant", "1")),
        (*MESSAGES, Message("user", "1", tool_call_id="7")),
        (replace(MESSAGES[0], content="other system"), *MESSAGES[1:]),
        (MESSAGES[0], replace(MESSAGES[1], content="earlier user"), *MESSAGES[2:]),
        (*MESSAGES[:-1], replace(USER, role="assistant")),
        (*MESSAGES[:-1], replace(USER, tool_call_id="1")),
        (Message("user", "0"), *MESSAGES),
        list(MESSAGES),
    ],
)
def test_before_model_may_not_change_other_messages(messages: Any) -> None:
    with pytest.raises(ContractViolation, match="messages"):
        run("before_model", maps(lambda e: replace(e, messages=messages)))


def test_a_split_feeds_every_part_to_the_later_processors_in_order() -> None:
    def two(self: Any, event: ToolCall, ctx: Any) -> Iterator[ToolCall]:
        yield replace(event, input={"n": 1})
        yield replace(event, input={"n": 2})

    later = maps(lambda e: replace(e, input={"n": e.input["n"] * 10}))
    assert [e.input["n"] for e in run("before_tool", two, later)] == [10, 20]


def test_no_yield_intercepts_and_later_processors_see_nothing() -> None:
    seen: list[Any] = []
    assert run("before_tool", yields(), maps(seen.append)) == []
    assert seen == []


def test_an_async_generator_is_a_processor_too() -> None:
    async def method(self: Any, event: ModelResponse, ctx: Any) -> Any:
        await asyncio.sleep(0)
        yield replace(event, content=event.content + "!")

    assert run("after_model", method, method)[0].content == "hi!!"


def test_an_interrupt_and_a_host_error_go_through() -> None:
    with pytest.raises(Interrupt) as caught:
        run("before_tool", raises(Interrupt("enough", "truncated")))
    assert (caught.value.reason, caught.value.status) == ("enough", "truncated")
    with pytest.raises(HostError):
        run("before_tool", raises(HostError("infra", "engine")))


@pytest.mark.parametrize("status", ["infra_error", "harness_error", "won"])
def test_an_interrupt_may_not_end_a_run_unscored(status: str) -> None:
    with pytest.raises(ContractViolation, match="Interrupt"):
        run("before_tool", raises(Interrupt("x", status)))


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("error", [KeyError("k"), SystemExit(3), MemoryError(), Unprintable()])
def test_an_exception_names_processor_hook_and_cause(error: BaseException) -> None:
    with pytest.raises(ProcessorError) as caught:
        run("after_tool", passes, raises(error))
    assert caught.value.processor == "p1"
    assert caught.value.hook == "after_tool"
    assert caught.value.cause is error
    assert type(error).__name__ in str(caught.value)


def test_too_many_yields_are_a_violation_also_without_an_end() -> None:
    def endless(self: Any, event: Any, ctx: Any) -> Iterator[Any]:
        while True:
            yield event

    with pytest.raises(ContractViolation, match=f"more than {MAX_YIELDS}"):
        run("before_tool", endless)
    assert len(run("before_tool", yields(*[EVENTS["before_tool"]] * MAX_YIELDS))) == MAX_YIELDS


def test_splits_of_splits_do_not_multiply() -> None:
    many = yields(*[EVENTS["before_tool"]] * 10)
    with pytest.raises(ContractViolation, match="split into 100 parts"):
        run("before_tool", many, many)


@pytest.mark.parametrize("hook", sorted(READ_ONLY))
def test_a_read_only_hook_yields_its_event_exactly_once(hook: str) -> None:
    for times in (0, 2):
        with pytest.raises(ContractViolation, match="exactly once"):
            run(hook, yields(*[EVENTS[hook]] * times))


def test_nested_data_cannot_be_changed_in_place() -> None:
    def change(self: Any, event: ToolCall, ctx: Any) -> Iterator[ToolCall]:
        event.input["x"]["y"] = 2
        yield event

    with pytest.raises(ContractViolation, match="frozen"):
        run("before_tool", change)


def test_a_frozen_event_set_by_force_is_a_violation() -> None:
    def force(self: Any, event: StepEnd, ctx: Any) -> Iterator[StepEnd]:
        object.__setattr__(event, "history", ())
        yield event

    with pytest.raises(ContractViolation, match="in place"):
        run("step_end", force, event=replace(EVENTS["step_end"]))


def test_what_a_processor_puts_in_is_frozen_for_the_next() -> None:
    shared = {"list": [1], "map": {"a": 1}}
    (event,) = run("before_tool", maps(lambda e: replace(e, input=shared)))
    shared["map"]["a"] = 2  # type: ignore[index]
    assert event.input["map"]["a"] == 1


def test_a_hook_that_is_no_generator_is_refused_when_the_pipeline_is_made() -> None:
    with pytest.raises(PipelineError, match="no generator"):
        chain("step_end", lambda self, event, ctx: None)


def test_every_call_is_recorded_with_its_outcome() -> None:
    calls: list[Any] = []
    run(
        "after_tool", passes, maps(lambda e: replace(e, content="x")), yields(), record=calls.append
    )
    records = list(expand(calls))
    assert [r[1:5] for r in records] == [
        ("after_tool", "p0", "pass", ""),
        ("after_tool", "p1", "transform", ""),
        ("after_tool", "p2", "intercept", ""),
    ]
    assert all(isinstance(r[5], int) and r[5] >= 0 for r in records)
    calls.clear()
    with pytest.raises(ProcessorError):
        run("after_tool", raises(ValueError("no")), record=calls.append)
    assert next(expand(calls))[3:5] == ("error", "ValueError: no")


def test_after_a_split_the_record_says_which_processor_had_which_part() -> None:
    calls: list[Any] = []

    def twice(self: Any, event: Any, ctx: Any) -> Any:
        yield event
        yield event

    run("after_tool", passes, twice, passes, passes, record=calls.append)
    run("after_tool", passes, passes, record=calls.append)
    assert [r[2:4] for r in expand(calls)] == [
        ("p0", "pass"),
        ("p1", "split"),
        ("p2", "pass"),
        ("p2", "pass"),
        ("p3", "pass"),
        ("p3", "pass"),
        ("p0", "pass"),
        ("p1", "pass"),
    ]


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(HOOKS),
    st.lists(st.sampled_from(["pass", "twice", "none"]), max_size=5),
)
def test_the_number_of_events_is_the_product_of_the_splits(hook: str, kinds: list[str]) -> None:
    times = {"pass": 1, "twice": 2, "none": 0}
    methods = [yields(*[EVENTS[hook]] * times[kind]) for kind in kinds]
    if hook in READ_ONLY and any(kind != "pass" for kind in kinds):
        with pytest.raises(ContractViolation):
            run(hook, *methods)
        return
    expected = 1
    for kind in kinds:
        expected *= times[kind]
    assert run(hook, *methods) == [EVENTS[hook]] * expected
