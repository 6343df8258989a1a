"""Place memory (D3): remembers which places were looked into and what lay there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from harness.events import BeforeModel, ToolResult
from harness.processor import PRE, Context, Processor
from harness.processors.household_text import facts
from harness.processors.last_user import append_to_last_user, last_user, with_last_user


class PlaceMemory(Processor):
    """Keeps the places whose contents were seen.

    mode `note` adds a line `seen: shelf 1, drawer 2`; mode `prune` takes `go to` such a place out
    of the choices while nothing is held (where something else is left to do); `both` does both.
    Putting an object down forgets all: a second one may lie where the first search passed.
    """

    kind: ClassVar[str] = "memory"
    singleton_group: ClassVar[str | None] = "place_memory"
    order: ClassVar[int] = PRE - 10  # reads sentences before observation_shaping shortens them
    dimension: ClassVar[str] = "D3"

    mode: Literal["note", "prune", "both"] = "note"

    def after_tool(self, event: ToolResult, ctx: Context) -> Iterator[ToolResult]:
        found = facts(event.content)
        seen: list[str] = ctx.state.setdefault("seen", [])
        if found.place and found.seen is not None and found.place not in seen:
            seen.append(found.place)
        if found.taken:
            ctx.state["held"] = True
        if found.put:
            ctx.state["held"] = False
            seen.clear()
        yield event

    def before_model(self, event: BeforeModel, ctx: Context) -> Iterator[BeforeModel]:
        seen: list[str] = ctx.state.get("seen", [])
        if self.mode in ("prune", "both") and not ctx.state.get("held"):
            done = {f"go to {place}" for place in seen}
            left = tuple(c for c in last_user(event)[1].choices if c not in done)
            if left:
                event = with_last_user(event, choices=left)
        if self.mode in ("note", "both"):
            event = append_to_last_user(event, f"seen: {', '.join(seen) or 'nothing'}")
        yield event
