"""The agent loop: one episode of one task, the bundle's processors at the eight hooks.

Source: HarnessX §3. The effect of each event, and so what an intercept leaves out: TaskStart sets
the system prompt; StepStart sets the history; BeforeModel makes a model call; ModelResponse is
added to the history and its calls (or its text) go to the tools; ToolCall is carried out;
ToolResult is added to the history. A blocked call and a withheld result are told to the model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from harness.contexts import Contexts
from harness.events import (
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
from harness.functions import into
from harness.host import Host, HostError, ModelRequest, ToolReply, ToolRequest
from harness.jsonvalue import FrozenDict, thaw
from harness.metered import Budgets, MeteredHost
from harness.owntools import OwnTools
from harness.pipeline import ContractViolation, Pipeline, ProcessorError
from harness.processor import Interrupt
from harness.result import STATUSES, RunResult, Status
from harness.shorten import readable
from harness.trace import Trace

__all__ = ["BLOCKED", "STATUSES", "WITHHELD", "RunResult", "Status", "run"]

Part = Coroutine[Any, Any, object]
ENDED = "the environment ended the episode"
BLOCKED = "[The harness blocked this call; it was not carried out.]"
WITHHELD = "[The harness withheld this result.]"
HANG_GRACE_S = 1.0
"""Seconds past the run's wall time after which a processor that does not return is cut off."""

TASK_END_S = 5.0
"""Seconds that the processors of task_end have together, also after the run's own time is up."""


async def run(
    pipeline: Pipeline,
    task: TaskView,
    observation: ToolReply,
    host: Host,
    *,
    seed: int,
    budgets: Budgets,
    files: Mapping[str, bytes] | None = None,
    trace: Trace | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RunResult:
    """Run one episode to its end; every failure is a status of the result, none is raised.

    `observation` is the environment's first (its `content`, or the instruction where that is
    empty, opens the history). `seed` seeds each component's `ctx.rng`. `files`: the bundle's own.
    """
    metered = MeteredHost(host, budgets, clock, trace)
    contexts = Contexts(task, metered, seed, files or {}, trace)
    with into(trace.function if trace else None):
        return await _Run(pipeline, metered, contexts, trace).episode(observation)


class _Run:
    def __init__(
        self, pipeline: Pipeline, host: MeteredHost, contexts: Contexts, trace: Trace | None
    ) -> None:
        self.pipeline, self.host, self.context, self.trace = pipeline, host, contexts, trace
        self.task = contexts.task
        self.hook, self.system, self.output = "task_start", "", ""
        self.history: tuple[Message, ...] = ()
        self.steps = self.calls = 0

    async def through(self, hook: str, event: Any) -> list[Any]:
        self.hook = hook
        record = self.trace.record if self.trace else None
        return await self.pipeline.run(hook, event, self.context, record)

    async def episode(self, observation: ToolReply) -> RunResult:
        left = self.host.left()
        # Calls of the host end first, with their own error; what is cut here is a processor.
        left = None if left is None else left + HANG_GRACE_S
        status, reason = await self.ended(self.loop(observation), left)
        if status in ("completed", "truncated", "agent_error"):
            end = TaskEnd(max(self.steps - 1, 0), status, reason, self.output)
            after, why = await self.ended(self.through("task_end", end), TASK_END_S)
            if after in ("harness_error", "contract_violation", "infra_error"):
                status, reason = after, why
        result = RunResult(status, readable(reason), self.steps, self.output)
        if self.trace:
            self.trace.end(result.status, result.reason, result.steps)
        return result

    async def ended(self, part: Part, seconds: float | None) -> tuple[Status, str]:
        """Run a part of the episode within `seconds` and name how it ended."""
        status, reason = await self.caught(part, seconds)
        failure = self.host.failure
        # Also where a processor swallowed it: what follows an infrastructure error is no result.
        if failure is not None and failure.kind == "infra":
            return "infra_error", str(failure)
        return status, reason

    async def caught(self, part: Part, seconds: float | None) -> tuple[Status, str]:
        try:
            async with asyncio.timeout(seconds) as timer:
                await part
        except Interrupt as interrupt:
            return interrupt.status, interrupt.reason  # type: ignore[return-value]
        except ContractViolation as error:
            return "contract_violation", str(error)
        except ProcessorError as error:
            return "harness_error", str(error)
        except HostError as error:
            if error is not self.host.failure:
                return "harness_error", f"a HostError that a processor made at {self.hook}: {error}"
            return "truncated", f"{error.kind}: {error}"
        except TimeoutError:
            if not timer.expired():
                raise
            return "harness_error", f"a processor at {self.hook} did not return within {seconds} s"
        return "completed", ""

    async def loop(self, observation: ToolReply) -> None:
        self.own = OwnTools(self.pipeline.offering, self.task)
        self.task = self.context.task = self.own.task
        for start in await self.through("task_start", TaskStart(self.task)):
            self.system = start.system_prompt
        text = observation.content or self.task.instruction
        self.history = (Message("user", text, tuple(observation.choices)),)
        while True:
            limit = self.host.budgets.max_steps
            if self.steps >= limit:
                raise Interrupt(f"budget: {limit} steps used of {limit}", "truncated")
            spent = self.host.exhausted()
            if spent:
                raise Interrupt(f"{spent.kind}: {spent}", "truncated")
            step, self.steps = self.steps, self.steps + 1
            if self.trace:
                self.trace.begin(step)
            done = await self.step(step)
            await self.through("step_end", StepEnd(step, done is not None, self.history))
            if done is not None:
                raise Interrupt(done)

    async def step(self, step: int) -> str | None:
        """One turn. Returns why the episode is over, or None."""
        for start in await self.through("step_start", StepStart(step, self.history)):
            self.history = start.history
        head = (Message("system", self.system),) if self.system else ()
        before = BeforeModel(step, head + self.history)
        for event in await self.through("before_model", before):
            request = ModelRequest(step, event.messages, self.task.tools)
            reply = await self.host.model(request)
            response = ModelResponse(
                step,
                reply.content,
                reply.tool_calls,
                reply.finish_reason,
                reply.prompt_tokens,
                reply.sampled_tokens,
            )
            for part in await self.through("after_model", response):
                done = await self.respond(part)
                if done is not None:
                    return done
        return None

    async def respond(self, response: ModelResponse) -> str | None:
        """Add one response to the history and carry out what it asks for."""
        self.output = response.content
        self.history += (Message("assistant", response.content, tool_calls=response.tool_calls),)
        if response.tool_calls:
            for spec in response.tool_calls:
                if await self.act(response.step, spec, as_text=False):
                    return ENDED
            return None
        if self.task.action_tool is None:
            return "final answer"
        self.calls += 1
        command = FrozenDict(command=response.content.strip())
        spec = ToolCallSpec(f"text-{self.calls}", self.task.action_tool, command)
        done = await self.act(response.step, spec, as_text=True)
        return ENDED if done else None

    async def act(self, step: int, spec: ToolCallSpec, as_text: bool) -> bool:
        """Carry out one call; its results become one message of the history."""
        texts: list[str] = []
        choices: tuple[str, ...] = ()
        done = False
        asked = ToolCall(step, spec.call_id, spec.name, spec.input)
        for call in await self.through("before_tool", asked):
            if not call.approved:
                continue
            request = ToolRequest(step, call.call_id, call.name, thaw(call.input))
            if call.name in self.own:
                record = self.trace.record if self.trace else None
                reply = await self.own.answer(request, self.offered(), self.context, record)
            else:
                reply = await self.host.tool(request)
            choices, done = tuple(reply.choices), reply.done
            result = ToolResult(
                step, call.call_id, call.name, reply.content, reply.is_error, choices, done
            )
            parts = await self.through("after_tool", result)
            texts += [part.content for part in parts] or [WITHHELD]
            choices = parts[-1].choices if parts else choices
            if done:
                break
        if not texts:
            texts, choices = [BLOCKED], self.offered()
        role, call_id = ("user", None) if as_text else ("tool", spec.call_id)
        self.history += (Message(role, "\n".join(texts), choices, tool_call_id=call_id),)
        return done

    def offered(self) -> tuple[str, ...]:
        """The choices last offered: a blocked call has changed nothing in the environment."""
        for message in reversed(self.history):
            if message.role in ("user", "tool"):
                return message.choices
        return ()
