"""The host as a run sees it: every model and tool call counted against the run's budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

from harness.contract import Breach, frozen_calls
from harness.host import Host, HostError, ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.trace import Trace

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits of one episode; None: no limit.

    max_steps: turns of the loop. max_tokens: prompt and sampled tokens of all model calls
    together, sub-agents included. wall_s: seconds of wall time. max_tool_calls: calls carried
    out, also those that a harness splits off.
    """

    max_steps: int = 30
    max_tokens: int | None = None
    wall_s: float | None = None
    max_tool_calls: int | None = None


class MeteredHost:
    """A Host around a Host: raises HostError(budget | deadline) once a limit is reached.

    failure: the HostError that a call ended with. An infra failure is never overwritten, so that
    a processor which swallows one cannot turn it into a scored result; a processor that raises a
    HostError of its own is told apart by identity.
    """

    def __init__(
        self,
        host: Host,
        budgets: Budgets,
        clock: Callable[[], float],
        trace: Trace | None = None,
    ) -> None:
        self.host = host
        self.trace = trace
        self.budgets = budgets
        self.clock = clock
        self.started = clock()
        self.prompt_tokens = 0
        self.sampled_tokens = 0
        self.model_calls = 0
        self.tool_calls = 0
        self.failure: HostError | None = None

    async def model(self, request: ModelRequest) -> ModelReply:
        reply = await self._call(self.host.model(request))
        self.model_calls += 1
        self.prompt_tokens += reply.prompt_tokens
        self.sampled_tokens += reply.sampled_tokens
        try:
            reply = replace(reply, tool_calls=frozen_calls("tool_calls", tuple(reply.tool_calls)))
        except Breach as breach:
            self._failed(HostError("infra", f"the model's reply is malformed: {breach}"))
        if self.trace:
            self.trace.model(request, reply)
        return reply

    async def tool(self, request: ToolRequest) -> ToolReply:
        limit = self.budgets.max_tool_calls
        if limit is not None and self.tool_calls >= limit:
            self._failed(HostError("budget", f"{self.tool_calls} tool calls used of {limit}"))
        reply = await self._call(self.host.tool(request))
        self.tool_calls += 1
        if self.trace:
            self.trace.tool(request, reply)
        return reply

    def exhausted(self) -> HostError | None:
        """The budget that is used up, as the error it gives, or None."""
        used, limit = self.prompt_tokens + self.sampled_tokens, self.budgets.max_tokens
        if limit is not None and used >= limit:
            return HostError("budget", f"{used} tokens used of {limit}")
        left = self.left()
        if left is not None and left <= 0:
            return HostError("deadline", f"wall time of {self.budgets.wall_s} s used up")
        return None

    def left(self) -> float | None:
        """Seconds of wall time left; None without a limit."""
        if self.budgets.wall_s is None:
            return None
        return self.budgets.wall_s - (self.clock() - self.started)

    def _failed(self, error: HostError) -> NoReturn:
        if self.failure is None or self.failure.kind != "infra":
            self.failure = error
        raise error

    async def _call(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            spent = self.exhausted()
            if spent:
                call.close()
                raise spent
            left = self.left()
            if left is None:
                return await call
            try:
                async with asyncio.timeout(left) as timer:
                    return await call
            except TimeoutError as error:
                if not timer.expired():
                    raise
                raise HostError(
                    "deadline", f"wall time of {self.budgets.wall_s} s used up in a call"
                ) from error
        except HostError as error:
            self._failed(error)
