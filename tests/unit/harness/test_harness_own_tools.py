"""Tools that a bundle offers itself: seen by the model, answered in the harness process, contained."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from part_bench import CHAT, TEXT, Scripted, calls

from harness.events import TaskView, ToolSpec
from harness.host import HostError, ModelReply, ToolReply, ToolRequest
from harness.metered import Budgets
from harness.pipeline import Pipeline
from harness.processor import Context, Interrupt, Processor, ToolError
from harness.runloop import BLOCKED, RunResult, run
from harness.trace import Trace

ADD = ToolSpec("add", "adds", {"type": "object", "properties": {"a": {}, "b": {}}})


class Adds(Processor):
    def own_tools(self, task: TaskView) -> tuple[ToolSpec, ...]:
        return (ADD,)

    def answer(self, request: ToolRequest, ctx: Context) -> Any:
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        if "a" not in request.input:
            raise ToolError("a is missing")
        return f"{request.input['a'] + request.input['b']} ({ctx.state['count']})"


@dataclass(frozen=True)
class Bound:
    id: str
    processor: Processor


def go(host: Scripted, *parts: Processor, task: TaskView = CHAT, **options: Any) -> RunResult:
    pipeline = Pipeline(Bound(f"p{i}", p) for i, p in enumerate(parts))
    first = ToolReply("a room", choices=("look",))
    budgets = Budgets(max_steps=3)
    return asyncio.run(run(pipeline, task, first, host, seed=1, budgets=budgets, **options))


def test_the_model_sees_it_and_reads_its_answer_and_the_host_is_not_asked() -> None:
    host = Scripted([calls(("add", {"a": 1, "b": 2}), ("add", {}), ("read", {"path": "x"})), "ok"])
    trace = Trace("r", "full")
    assert go(host, Adds(), trace=trace).output == "ok"
    assert [tool.name for tool in host.asked[0].tools] == ["read", "add"]
    answers = [m.content for m in host.asked[1].messages if m.role == "tool"]
    assert answers == ["3 (1)", "a is missing", "fine"]
    assert [request.name for request in host.called] == ["read"]
    assert [r[:4] for r in trace.to_json()["harness"]] == [
        [0, "tool", "p0", "transform"],
        [0, "tool", "p0", "transform"],
    ]


def test_the_choices_of_the_environment_stay_as_they_were() -> None:
    host = Scripted([calls(("add", {"a": 1, "b": 2})), "look"])
    go(host, Adds(), task=TEXT)
    assert host.asked[1].messages[-1].choices == ("look",)


def test_hooks_see_such_a_call_like_any_other() -> None:
    class Blocks(Processor):
        def before_tool(self, event: Any, ctx: Context) -> Iterator[Any]:
            assert [tool.name for tool in ctx.task.tools] == ["read", "add"]
            yield replace(event, approved=event.input["a"] < 5)

        def after_tool(self, event: Any, ctx: Context) -> Iterator[Any]:
            yield replace(event, content=f"<{event.content}>")

    host = Scripted([calls(("add", {"a": 1, "b": 2}), ("add", {"a": 9, "b": 2})), "ok"])
    go(host, Adds(), Blocks())
    assert [m.content for m in host.asked[1].messages[-2:]] == ["<3 (1)>", BLOCKED]


def test_an_answer_may_be_asynchronous_and_ask_the_model() -> None:
    class Asks(Adds):
        async def answer(self, request: ToolRequest, ctx: Context) -> str:
            from harness.events import Message
            from harness.host import ModelRequest

            asked = ModelRequest(request.step, (Message("user", "?"),), role="judge")
            return (await ctx.host.model(asked)).content

    host = Scripted([calls(("add", {})), "ok"], roles={"judge": ["three"]})
    go(host, Asks())
    assert host.last(1) == "three"


def failing(error: BaseException) -> Processor:
    class Fails(Adds):
        def answer(self, request: ToolRequest, ctx: Context) -> str:
            raise error

    return Fails()


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (KeyError("x"), "harness_error", "processor 'p0' at the tool 'add' raised KeyError"),
        (SystemExit(0), "harness_error", "SystemExit"),
        (HostError("infra", "mine"), "harness_error", "a HostError that a processor made"),
        (Interrupt("enough"), "completed", "enough"),
        (Interrupt("lucky", "infra_error"), "contract_violation", "Interrupt"),
    ],
)
def test_what_an_answer_raises_has_a_status(error: Any, status: str, reason: str) -> None:
    result = go(Scripted([calls(("add", {}))]), failing(error))
    assert (result.status, reason in result.reason) == (status, True), result


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("add", "holds str"),
        (ToolSpec("read", "x"), "offers 'read', which the task offers"),
        (ToolSpec("a b", "x"), "names a tool 'a b'"),
        (ToolSpec("a", "x", {"n": float("nan")}), "nan"),
        (ToolSpec("a", None), "by no text"),  # type: ignore[arg-type]
    ],
)
def test_a_tool_that_cannot_be_offered_is_a_violation(spec: Any, reason: str) -> None:
    class Offers(Adds):
        def own_tools(self, task: TaskView) -> tuple[ToolSpec, ...]:
            return (spec,)

    result = go(Scripted(), Offers())
    assert (result.status, reason in result.reason) == ("contract_violation", True), result


def test_two_components_cannot_offer_one_name() -> None:
    result = go(Scripted(), Adds(), Adds())
    assert result.status == "contract_violation"
    assert "processor 'p1' at task_start: own_tools offers 'add', which component 'p0' offers" in (
        result.reason
    )


def test_a_result_that_is_no_text_is_a_violation() -> None:
    class Numbers(Adds):
        def answer(self, request: ToolRequest, ctx: Context) -> Any:
            return 3

    result = go(Scripted([calls(("add", {}))]), Numbers())
    assert result.status == "contract_violation"
    assert "result is int; a str" in result.reason


def test_a_processor_that_offers_nothing_costs_nothing() -> None:
    class Plain(Processor):
        pass

    assert Pipeline([Bound("p", Plain())]).offering == ()
    host = Scripted([ModelReply("ok")])
    go(host, Plain())
    assert host.asked[0].tools == CHAT.tools
