"""Planning (D7): the model writes a plan first, and reads it again at every step."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

from pydantic import Field

from harness.events import BeforeModel, Message
from harness.host import ModelRequest
from harness.processor import Context, Processor
from harness.processors.last_user import append_to_last_user

INSTRUCTION = "Write a short numbered plan for the task below. Do not carry it out yet."
AGAIN = "The plan so far:"


class Planning(Processor):
    """Before the first step one model call (role `planner`, instruction `prompt`, at most
    `max_tokens`) writes a plan; it stands below the last user message of every step.

    every: steps after which the plan is written again from what has been seen; 0: never.
    """

    kind: ClassVar[str] = "control_flow"
    singleton_group: ClassVar[str | None] = "planning"
    dimension: ClassVar[str] = "D7"

    prompt: str = INSTRUCTION
    max_tokens: int = Field(256, ge=8)
    every: int = Field(0, ge=0)

    async def before_model(self, event: BeforeModel, ctx: Context) -> AsyncIterator[BeforeModel]:
        due = self.every and event.step - ctx.state.get("made", 0) >= self.every
        if "plan" not in ctx.state or due:
            ctx.state["plan"] = await self.plan(event, ctx)
            ctx.state["made"] = event.step
        yield append_to_last_user(event, f"[plan]\n{ctx.state['plan']}")

    async def plan(self, event: BeforeModel, ctx: Context) -> str:
        seen = [f"{m.role}: {m.content}" for m in event.messages if m.role != "system"]
        parts = [f"Task: {ctx.task.instruction}", *seen]
        if "plan" in ctx.state:
            parts += [AGAIN, ctx.state["plan"]]
        messages = (Message("system", self.prompt), Message("user", "\n\n".join(parts)))
        request = ModelRequest(event.step, messages, role="planner", max_tokens=self.max_tokens)
        return (await ctx.host.model(request)).content.strip()
