"""Own tools, function traces, notes and the bundle's own files, in the sandboxed harness process."""

from __future__ import annotations

import textwrap

import pytest
from sandbox_bench import Bench, Echo, at, own

from harness.bundle import Bundle
from harness.events import TaskView, ToolCallSpec
from harness.host import ModelReply, ModelRequest
from harness.sandbox import Limits

HEAD = """
import time
from harness.events import ToolSpec
from harness.processor import Processor, ToolError


def add(a, b):
    return a + b
"""
CHAT = TaskView("add", "world")


def offering(answer: str, tools: str = "return (ToolSpec('add', 'adds'),)") -> Bundle:
    return own(
        HEAD
        + "\n\nclass Own(Processor):\n    def own_tools(self, task):\n"
        + textwrap.indent(tools, " " * 8)
        + "\n\n    def answer(self, request, ctx):\n"
        + textwrap.indent(textwrap.dedent(answer), " " * 8)
    )


class Caller(Echo):
    """A model that calls `add` once and then answers what it read."""

    async def model(self, request: ModelRequest) -> ModelReply:
        self.asked.append(request)
        if len(self.asked) == 1:
            return ModelReply("", (ToolCallSpec("c", "add", {"a": 1, "b": 2}),), "tool_calls")
        return ModelReply(request.messages[-1].content)


def test_an_own_tool_is_answered_in_the_sandbox_and_traced(bench: Bench) -> None:
    host = Caller()
    answer = "ctx.note('adding')\nreturn str(add(request.input['a'], request.input['b']))"
    ran = bench.episode(offering(answer), host, task=CHAT, trace_level="full")
    assert (ran.result.status, ran.result.output) == ("completed", "3")
    assert host.called == []
    assert [tool.name for tool in host.asked[0].tools] == ["add"]
    assert ran.trace is not None
    assert [r[:4] for r in ran.trace["harness"]] == [[0, "tool", "own", "transform"]]
    functions = [r[:4] for r in ran.trace["functions"]]
    assert [0, "add", "1, 2", "3"] in functions
    assert ran.trace["notes"] == [[0, "own", "adding"]]


def test_functions_are_traced_at_level_full_only(bench: Bench) -> None:
    ran = bench.episode(offering("return str(add(1, 2))"), Caller(), task=CHAT, trace_level="agent")
    assert ran.trace is not None
    assert "functions" not in ran.trace


@pytest.mark.parametrize(
    ("bundle", "status", "reason"),
    [
        (offering("while True: pass"), "harness_error", "sent nothing"),
        (offering("return 'x' * (1 << 21)"), "contract_violation", "a str of at most"),
        (offering("return 3"), "contract_violation", "result is int"),
        (offering("raise KeyError('x')"), "harness_error", "KeyError"),
        (offering("import os\nos._exit(0)"), "harness_error", "exited with status 0"),
        (
            offering("pass", "while True: yield ToolSpec(f't{time.time_ns()}', '')"),
            "contract_violation",
            "offers more than 64 tools",
        ),
        (
            offering("pass", "return (ToolSpec('a b', ''),)"),
            "contract_violation",
            "names a tool 'a b'",
        ),
    ],
)
def test_a_tool_that_misbehaves_has_a_typed_outcome(
    bench: Bench, bundle: Bundle, status: str, reason: str
) -> None:
    limits = Limits(silent_s=3.0, memory_mb=256)
    ran = bench.episode(bundle, Caller(), task=CHAT, limits=limits)
    assert ran.result.status == status, ran.result
    assert reason in ran.result.reason
    bench.still_works()


def test_a_bundle_cannot_write_to_its_own_tree(bench: Bench) -> None:
    body = """
    ctx.files["parts/own.py"] = b""
    yield event
    """
    ran = bench.episode(at("step_start", body))
    assert ran.result.status == "harness_error"
    assert "does not support item assignment" in ran.result.reason
    own_file = "open(type(self).__module__ and __file__, 'w')\nyield event"
    ran = bench.episode(at("step_start", own_file))
    assert ran.result.status == "harness_error"
    assert "No such file" in ran.result.reason or "Permission" in ran.result.reason
    bench.still_works()


def test_a_million_function_calls_and_notes_are_bounded(bench: Bench) -> None:
    answer = "for _ in range(200_000):\n    add(1, 2)\n    ctx.note('x' * 1000)\nreturn 'ok'"
    ran = bench.episode(
        offering(answer), Caller(), task=CHAT, trace_level="full", limits=Limits(silent_s=60.0)
    )
    assert (ran.result.status, ran.result.output) == ("completed", "ok")
    assert ran.trace is not None
    assert len(ran.trace["functions"]) <= 20_000
    assert len(ran.trace["notes"]) <= 1_000
    assert ran.trace["dropped"]["harness"] > 300_000
