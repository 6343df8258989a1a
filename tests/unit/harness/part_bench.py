"""Runs one episode of built-in parts against a scripted host."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from harness.build import build
from harness.bundle import Bundle
from harness.component import Component, File
from harness.events import TaskView, ToolCallSpec, ToolSpec
from harness.host import ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.metered import Budgets
from harness.pipeline import Pipeline
from harness.runloop import RunResult, run
from harness.trace import Trace

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
    "required": ["path"],
    "additionalProperties": False,
}
CHAT = TaskView("find the lamp", "world", tools=(ToolSpec("read", "reads", SCHEMA),))
TEXT = TaskView("find the lamp", "world", tools=(ToolSpec("act", "acts"),), action_tool="act")


@dataclass
class Scripted:
    """Answers from lists; `again` and `fine` once they are empty. `roles`: replies of other roles."""

    replies: list[Any] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    roles: dict[str, list[Any]] = field(default_factory=dict)
    asked: list[ModelRequest] = field(default_factory=list)
    called: list[ToolRequest] = field(default_factory=list)

    async def model(self, request: ModelRequest) -> ModelReply:
        self.asked.append(request)
        replies = self.replies if request.role == "main" else self.roles[request.role]
        reply = replies.pop(0) if replies else "again"
        return reply if isinstance(reply, ModelReply) else ModelReply(reply, sampled_tokens=1)

    async def tool(self, request: ToolRequest) -> ToolReply:
        self.called.append(request)
        reply = self.results.pop(0) if self.results else "fine"
        return reply if isinstance(reply, ToolReply) else ToolReply(reply)

    @property
    def main(self) -> list[ModelRequest]:
        return [request for request in self.asked if request.role == "main"]

    def last(self, turn: int) -> str:
        """The last message that the main model read at its turn."""
        return self.main[turn].messages[-1].content


def calls(*specs: tuple[str, dict[str, Any]]) -> ModelReply:
    """A reply that calls tools."""
    made = tuple(ToolCallSpec(f"c{i}", name, given) for i, (name, given) in enumerate(specs))
    return ModelReply("", made, "tool_calls")


def part(entrypoint: str, kind: str, id: str = "part", **params: Any) -> Component:
    return Component(id, kind, f"harness.processors.{entrypoint}", params)


def episode(
    host: Scripted,
    *parts: Component,
    task: TaskView = CHAT,
    files: dict[str, str] | None = None,
    steps: int = 3,
    observation: ToolReply = ToolReply("You are in a room."),  # noqa: B008
    trace: Trace | None = None,
) -> RunResult:
    bundle = Bundle(parts, {path: File(text.encode()) for path, text in (files or {}).items()})
    return asyncio.run(
        run(
            Pipeline(build(bundle, allow_own_code=False)),
            replace(task, max_steps=steps),
            observation,
            host,
            seed=1,
            budgets=Budgets(max_steps=steps),
            files=bundle.contents(),
            trace=trace,
        )
    )
