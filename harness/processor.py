"""The processor protocol: one behaviour, a method a hook, each a generator over that hook's event.

A processor subclasses `Processor`, states its parameters as pydantic fields (frozen, unknown
names refused) and defines a method named like each hook that it uses:

    class HistoryWindow(Processor):
        kind = "context_mgmt"
        singleton_group = "history_window"
        turns: int = Field(4, ge=1)

        def step_start(self, event, ctx):
            yield dataclasses.replace(event, history=event.history[-2 * self.turns :])

A processor may also offer tools of its own: `own_tools` lists them, and `answer` answers a call of
one in this process, without the host. before_tool and after_tool see such calls like any other.

The method of a hook is a generator or an async generator. `yield event` passes, `yield replace(event, …)`
transforms, several yields split, no yield intercepts (the hook's action does not happen), and
`raise Interrupt(reason)` ends the loop. State of an episode lives in `ctx.state` only: the
processor object itself is frozen and shared.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from harness.events import TaskView, ToolSpec
from harness.host import Host, ToolRequest

PRE, NORMAL, POST = 0, 50, 100


def _unheard(text: str) -> None:
    """A note where nobody keeps notes."""


class Interrupt(Exception):
    """Raised by a processor to end the run: `status` as in runloop.RunResult (default completed)."""

    def __init__(self, reason: str, status: str = "completed") -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


@dataclass(slots=True)
class Context:
    """What a processor sees besides its event.

    task: the task as the harness may see it; its `tools` hold those that the bundle adds, too. state: this component's own dict for this episode.
    shared: a dict of the episode for all components (documented keys only). rng: seeded by the
    episode. files: the bundle's own files, path -> bytes, read-only. host: model and tool calls
    (a sub-agent, a self-check); every call is counted against the episode's budgets. note: writes a
    line to the harness trace, kept at trace level `full`.
    """

    task: TaskView
    component: str
    rng: random.Random
    host: Host
    files: Mapping[str, bytes] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    note: Callable[[str], None] = _unheard


class Processor(BaseModel):
    """Base of every processor. Subclasses add fields (parameters) and hook methods.

    kind: the component kind that edits of it count as (see harness.bundle.KINDS).
    singleton_group: at most one processor of a group in a bundle; `replace` works by group.
    order: PRE 0 · NORMAL 50 · POST 100, lower runs first; the manifest may override it.
    after: singleton groups or component ids that run before this one where present (soft).
    needs: what must be there, checked when a bundle is built: a component id, a singleton group, or
    `tool:NAME` for a tool that the task offers.
    dimension: D1–D9 of HarnessX §3, for docs and reports.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ClassVar[str] = "processor"
    singleton_group: ClassVar[str | None] = None
    order: ClassVar[int] = NORMAL
    after: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    dimension: ClassVar[str] = "D7"

    def own_tools(self, task: TaskView) -> tuple[ToolSpec, ...]:
        """The tools that this processor answers itself, asked for once an episode.

        A name that the task or another component offers already is a contract violation."""
        return ()

    def answer(self, request: ToolRequest, ctx: Context) -> str | Awaitable[str]:
        """The result of a call of one of `own_tools`, as text; may be `async def`.

        Raises ToolError where the call makes no sense: the model is told so. What else it raises
        is a harness error."""
        raise NotImplementedError(f"{type(self).__name__} offers no tool {request.name!r}")


class ToolError(Exception):
    """A call of an own tool that cannot be answered; the model reads the message."""
