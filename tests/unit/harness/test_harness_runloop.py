"""The run loop, driven by a scripted host: flow, budgets, and how every failure is named."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from harness.events import Message, TaskView, ToolCallSpec, ToolSpec
from harness.host import HostError, ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.metered import Budgets
from harness.pipeline import Pipeline
from harness.processor import Context, Interrupt, Processor
from harness.runloop import BLOCKED, WITHHELD, RunResult, run
from harness.trace import Trace

TEXT = TaskView("find it", "world", action_tool="act")
CHAT = TaskView("find it", "world", tools=(ToolSpec("look", "looks"),))
FIRST = ToolReply("You are in a room.", choices=("look", "go"))


@dataclass
class Script:
    """A host that answers from lists and keeps what it was asked."""

    replies: list[Any]
    results: list[Any] = field(default_factory=list)
    asked: list[ModelRequest] = field(default_factory=list)
    called: list[ToolRequest] = field(default_factory=list)

    async def model(self, request: ModelRequest) -> ModelReply:
        self.asked.append(request)
        return self.answer(self.replies.pop(0) if self.replies else "again", ModelReply)

    async def tool(self, request: ToolRequest) -> ToolReply:
        self.called.append(request)
        return self.answer(self.results.pop(0) if self.results else "fine", ToolReply)

    def answer(self, reply: Any, cls: type) -> Any:
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, str):
            return cls(reply)
        return reply


@dataclass(frozen=True)
class Bound:
    id: str
    processor: Processor


def go(
    host: Script,
    *processors: Processor,
    task: TaskView = TEXT,
    observation: ToolReply = FIRST,
    budgets: Budgets = Budgets(max_steps=3),  # noqa: B008
    **options: Any,
) -> RunResult:
    pipeline = Pipeline(Bound(f"p{i}", p) for i, p in enumerate(processors))
    return asyncio.run(
        run(
            pipeline,
            task,
            observation,
            host,
            seed=options.pop("seed", 1),
            budgets=budgets,
            **options,
        )
    )


def test_text_actions_go_to_the_action_tool_until_the_environment_is_done() -> None:
    host = Script(
        [" look ", "go"], [ToolReply("a door", choices=("go",)), ToolReply("won", done=True)]
    )
    result = go(host)
    assert result == RunResult("completed", "the environment ended the episode", 2, "go")
    assert [(c.name, c.input) for c in host.called] == [
        ("act", {"command": "look"}),
        ("act", {"command": "go"}),
    ]
    assert host.asked[1].messages == (
        Message("user", FIRST.content, FIRST.choices),
        Message("assistant", " look "),
        Message("user", "a door", ("go",)),
    )


def test_an_empty_observation_leaves_the_instruction_to_open_the_history() -> None:
    host = Script(["x"])
    go(host, observation=ToolReply(""), budgets=Budgets(max_steps=1))
    assert host.asked[0].messages == (Message("user", "find it"),)


def test_tool_calls_are_answered_under_their_ids_and_plain_text_is_the_answer() -> None:
    calls = (ToolCallSpec("c1", "look", {"at": ["door"]}), ToolCallSpec("c2", "look", {}))
    host = Script([ModelReply("", calls, "tool_calls"), "forty-two"], ["a door", "a wall"])
    result = go(host, task=CHAT)
    assert result == RunResult("completed", "final answer", 2, "forty-two")
    assert host.called[0].input == {"at": ["door"]}
    assert host.asked[0].tools == CHAT.tools
    frozen = (replace(calls[0], input={"at": ("door",)}), calls[1])
    assert host.asked[1].messages[1:] == (
        Message("assistant", "", tool_calls=frozen),
        Message("tool", "a door", tool_call_id="c1"),
        Message("tool", "a wall", tool_call_id="c2"),
    )


def test_the_environment_may_end_the_episode_between_two_tool_calls() -> None:
    calls = (ToolCallSpec("c1", "look"), ToolCallSpec("c2", "look"))
    host = Script([ModelReply("", calls)], [ToolReply("over", done=True)])
    assert go(host, task=CHAT).status == "completed"
    assert len(host.called) == 1


def test_steps_are_a_budget() -> None:
    result = go(Script([]))
    assert result == RunResult("truncated", "budget: 3 steps used of 3", 3, "again")


def test_tokens_are_a_budget_and_a_sub_agent_spends_them_too() -> None:
    class Asks(Processor):
        async def step_start(self, event: Any, ctx: Context) -> Any:
            await ctx.host.model(ModelRequest(event.step, (Message("user", "?"),), role="judge"))
            yield event

    replies = [ModelReply("x", prompt_tokens=30, sampled_tokens=20) for _ in range(9)]
    result = go(Script(replies[:]), budgets=Budgets(max_steps=9, max_tokens=100))
    assert (result.status, result.steps) == ("truncated", 2)
    result = go(Script(replies[:]), Asks(), budgets=Budgets(max_steps=9, max_tokens=100))
    assert (result.status, result.steps) == ("truncated", 1)
    assert result.reason == "budget: 100 tokens used of 100"


def test_tool_calls_are_a_budget_where_one_is_given() -> None:
    host = Script([])
    result = go(host, budgets=Budgets(max_steps=9, max_tool_calls=2))
    assert (result.status, result.reason) == ("truncated", "budget: 2 tool calls used of 2")
    assert len(host.called) == 2


def test_wall_time_is_a_budget_by_the_clock_that_is_passed_in() -> None:
    now = iter(range(100))
    result = go(
        Script([]), budgets=Budgets(max_steps=50, wall_s=10.0), clock=lambda: float(next(now))
    )
    assert result.status == "truncated"
    assert result.reason.startswith("deadline: wall time of 10.0 s used up")


def test_a_call_in_flight_is_cut_off_at_the_deadline() -> None:
    class Slow(Script):
        async def model(self, request: ModelRequest) -> ModelReply:
            await asyncio.sleep(60)
            raise AssertionError

    result = go(Slow([]), budgets=Budgets(wall_s=0.05))
    assert result.status == "truncated"
    assert "deadline" in result.reason


def test_an_async_processor_that_does_not_return_is_a_harness_error() -> None:
    class Hangs(Processor):
        async def before_model(self, event: Any, ctx: Context) -> Any:
            await asyncio.sleep(60)
            yield event

    result = go(Script([]), Hangs(), budgets=Budgets(wall_s=0.05))
    assert result.status == "harness_error"
    assert "before_model did not return" in result.reason


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("infra", "infra_error"),
        ("context", "truncated"),
        ("budget", "truncated"),
        ("deadline", "truncated"),
    ],
)
def test_a_host_error_names_the_status(kind: str, status: str) -> None:
    result = go(Script(["look", HostError(kind, "why")]))
    assert (result.status, result.steps) == (status, 2)
    assert "why" in result.reason


def test_a_malformed_model_reply_is_an_infrastructure_error() -> None:
    bad = ModelReply("", (ToolCallSpec("1", "look", {"x": object()}),))
    assert go(Script([bad])).status == "infra_error"


def test_a_swallowed_infrastructure_error_still_ends_as_one() -> None:
    class Swallows(Processor):
        async def step_start(self, event: Any, ctx: Context) -> Any:
            try:
                await ctx.host.model(ModelRequest(0, (Message("user", "?"),)))
            except HostError:
                ctx.state["swallowed"] = True
            yield event

    result = go(Script([HostError("infra", "engine died")]), Swallows())
    assert (result.status, result.reason) == ("infra_error", "engine died")


def test_a_processor_cannot_raise_an_infrastructure_error_of_its_own() -> None:
    class Forges(Processor):
        def step_start(self, event: Any, ctx: Context) -> Iterator[Any]:
            raise HostError("infra", "not me")
            yield

    result = go(Script([]), Forges())
    assert result.status == "harness_error"
    assert "a HostError that a processor made" in result.reason


def test_violations_and_exceptions_have_their_own_status() -> None:
    class Breaks(Processor):
        def step_end(self, event: Any, ctx: Context) -> Iterator[Any]:
            yield replace(event, done=True)

    class Raises(Processor):
        def after_tool(self, event: Any, ctx: Context) -> Iterator[Any]:
            raise ValueError("no")
            yield

    assert go(Script([]), Breaks()).status == "contract_violation"
    result = go(Script([]), Raises())
    assert result.status == "harness_error"
    assert "'p0' at after_tool raised ValueError: no" in result.reason


@pytest.mark.parametrize("status", ["completed", "truncated", "agent_error"])
def test_an_interrupt_ends_the_run_with_its_status(status: str) -> None:
    class Ends(Processor):
        def after_model(self, event: Any, ctx: Context) -> Iterator[Any]:
            raise Interrupt("gave up", status)
            yield

    result = go(Script([]), Ends())
    assert (result.status, result.reason, result.steps) == (status, "gave up", 1)


def test_the_system_prompt_stands_before_the_history_and_history_edits_last() -> None:
    class Prompt(Processor):
        def task_start(self, event: Any, ctx: Context) -> Iterator[Any]:
            yield replace(event, system_prompt=ctx.files["s.md"].decode())

        def step_start(self, event: Any, ctx: Context) -> Iterator[Any]:
            yield replace(event, history=event.history[-1:])

        def before_model(self, event: Any, ctx: Context) -> Iterator[Any]:
            yield replace(event, messages=(*event.messages, Message("user", "hint")))

    host = Script([])
    go(host, Prompt(), budgets=Budgets(max_steps=2), files={"s.md": b"Be brief."})
    assert [[m.content for m in r.messages] for r in host.asked] == [
        ["Be brief.", FIRST.content, "hint"],
        ["Be brief.", "fine", "hint"],
    ]


def test_a_blocked_call_is_not_carried_out_and_the_model_is_told() -> None:
    class Blocks(Processor):
        approve: bool

        def before_tool(self, event: Any, ctx: Context) -> Iterator[Any]:
            if self.approve:
                yield replace(event, approved=False)

    for approve in (True, False):
        host = Script([])
        go(host, Blocks(approve=approve), budgets=Budgets(max_steps=2))
        assert host.called == []
        assert host.asked[1].messages[-1] == Message("user", BLOCKED, FIRST.choices)


def test_a_withheld_result_is_told_too() -> None:
    class Withholds(Processor):
        def after_tool(self, event: Any, ctx: Context) -> Iterator[Any]:
            yield from ()

    host = Script([], [ToolReply("secret", choices=("a",))])
    go(host, Withholds(), budgets=Budgets(max_steps=2))
    assert host.asked[1].messages[-1] == Message("user", WITHHELD, ("a",))


def test_an_intercepted_model_call_costs_a_step_and_no_call() -> None:
    class Skips(Processor):
        def before_model(self, event: Any, ctx: Context) -> Iterator[Any]:
            if event.step:
                yield event

    host = Script([])
    assert go(host, Skips()).steps == 3
    assert [r.step for r in host.asked] == [1, 2]


def test_an_intercepted_response_leaves_no_mark_so_the_model_is_asked_again() -> None:
    class Retries(Processor):
        def after_model(self, event: Any, ctx: Context) -> Iterator[Any]:
            if event.content != "bad":
                yield event

    host = Script(["bad", "good"])
    go(host, Retries(), budgets=Budgets(max_steps=2))
    assert host.asked[0].messages == host.asked[1].messages
    assert [c.input["command"] for c in host.called] == ["good"]


def test_a_split_call_is_carried_out_part_by_part_and_answered_once() -> None:
    class Splits(Processor):
        def before_tool(self, event: Any, ctx: Context) -> Iterator[Any]:
            for command in event.input["command"].split(";"):
                yield replace(event, input={"command": command})

    host = Script(["a;b", "c"], [ToolReply("A"), ToolReply("B", choices=("c",))])
    go(host, Splits(), budgets=Budgets(max_steps=2))
    assert [c.input["command"] for c in host.called] == ["a", "b", "c"]
    assert host.asked[1].messages[-1] == Message("user", "A\nB", ("c",))


def test_a_split_response_is_handled_part_by_part() -> None:
    class Splits(Processor):
        def after_model(self, event: Any, ctx: Context) -> Iterator[Any]:
            yield replace(event, content="one")
            yield replace(event, content="two")

    host = Script([])
    go(host, Splits(), budgets=Budgets(max_steps=2))
    assert [m.content for m in host.asked[1].messages[1:]] == ["one", "fine", "two", "fine"]


def test_state_and_randomness_belong_to_component_and_episode() -> None:
    class Draws(Processor):
        def after_model(self, event: Any, ctx: Context) -> Iterator[Any]:
            ctx.state["n"] = ctx.state.get("n", 0) + 1
            yield replace(event, content=f"{event.content} {ctx.state['n']} {ctx.rng.random():.6f}")

    def commands(seed: int) -> list[str]:
        host = Script([])
        go(host, Draws(), Draws(), seed=seed)
        return [c.input["command"] for c in host.called]

    first = commands(1)
    assert first == commands(1) != commands(2)
    words = [line.split() for line in first]
    assert [w[1] for w in words] == [w[3] for w in words] == ["1", "2", "3"]
    assert all(w[2] != w[4] for w in words)


def test_task_end_hears_how_it_ended_and_its_failure_counts() -> None:
    ends: list[Any] = []

    class Ends(Processor):
        def task_end(self, event: Any, ctx: Context) -> Iterator[Any]:
            ends.append(event)
            yield event

    class Fails(Processor):
        def task_end(self, event: Any, ctx: Context) -> Iterator[Any]:
            raise OSError("disk")
            yield

    go(Script([]), Ends())
    assert (ends[0].step, ends[0].status, ends[0].output) == (2, "truncated", "again")
    assert go(Script([]), Fails()).status == "harness_error"


def test_the_trace_has_what_the_model_saw_and_every_processor_call() -> None:
    class Adds(Processor):
        def before_model(self, event: Any, ctx: Context) -> Iterator[Any]:
            yield replace(event, messages=(*event.messages, Message("user", "hint")))

    trace = Trace("run-7", "full")
    go(Script(["look"]), Adds(), budgets=Budgets(max_steps=2), trace=trace)
    out = trace.to_json()
    assert (out["run_id"], out["status"], out["steps"]) == ("run-7", "truncated", 2)
    kinds = [(e["step"], e["kind"]) for e in out["agent"]]
    assert kinds == [(0, "model"), (0, "tool"), (1, "model"), (1, "tool")]
    assert [m["content"] for m in out["agent"][0]["messages"]] == [FIRST.content, "hint"]
    assert out["agent"][2]["kept"] == 1
    assert out["agent"][1]["input"] == {"command": "look"}
    assert [r[:4] for r in out["harness"]] == [
        [0, "before_model", "p0", "transform"],
        [1, "before_model", "p0", "transform"],
    ]
