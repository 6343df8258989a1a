"""Holding state (D3): reminds the model of what it carries and what was done to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from harness.events import BeforeModel, ToolResult
from harness.processor import PRE, Context, Processor
from harness.processors.household_text import facts
from harness.processors.last_user import append_to_last_user

SHARED_KEY = "household.holding"
"""ctx.shared key: (item, treatment or "") in hand, or None."""


class HoldingState(Processor):
    """Appends `holding: apple 1 (clean)` to the last user message of every step."""

    kind: ClassVar[str] = "memory"
    singleton_group: ClassVar[str | None] = "holding_state"
    order: ClassVar[int] = PRE - 10  # reads sentences before observation_shaping shortens them
    dimension: ClassVar[str] = "D3"

    def after_tool(self, event: ToolResult, ctx: Context) -> Iterator[ToolResult]:
        found = facts(event.content)
        treated: dict[str, str] = ctx.state.setdefault("treated", {})
        if found.treated:
            treated[found.treated[0]] = found.treated[1]
        item = found.taken or (found.treated[0] if found.treated else None)
        if item:
            ctx.shared[SHARED_KEY] = (item, treated.get(item, ""))
        elif found.put:
            ctx.shared[SHARED_KEY] = None
        yield event

    def before_model(self, event: BeforeModel, ctx: Context) -> Iterator[BeforeModel]:
        held = ctx.shared.get(SHARED_KEY)
        text = "nothing" if held is None else held[0] + (f" ({held[1]})" if held[1] else "")
        yield append_to_last_user(event, f"holding: {text}")
