"""Roles of evolution as harnesses of our own: a bundle under `prompts/`, run by the run loop.

The host of such a run is the language model and the role's tools. These bundles are the project's,
of built-in parts, and never evolved: they run in this process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel

from harness.bundle import Bundle, load
from harness.events import TaskView, ToolCallSpec
from harness.evolve.llm.client import Ask, Chat, Check
from harness.evolve.llm.config import Role
from harness.evolve.llm.output import Unreadable, without_thinking
from harness.evolve.parts import EvolutionInfraError, PartFailed, Situation
from harness.evolve.recipe import Parts
from harness.function_calling import as_function, as_message
from harness.host import HostError, ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.jsonvalue import FrozenDict
from harness.metered import Budgets
from harness.result import RunResult
from harness.sandbox.inprocess import run_inprocess
from harness.shorten import readable
from harness.tools.registry import ToolRegistry

PROMPTS = Path(__file__).resolve().parents[1] / "prompts"
MAX_STEPS = 200
"""Turns of one role's session at most (HarnessX, defaults)."""

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


@runtime_checkable
class AsksModels(Protocol):
    """A part that asks language models: least_tokens is what a round of it takes at the least."""

    def least_tokens(self) -> int: ...


def least_tokens(parts: Parts) -> int:
    """What a round of these parts takes at the least, for `Chat.check_budget`."""
    return sum(part.least_tokens() for part in parts.all() if isinstance(part, AsksModels))


def chat_of(at: Situation) -> Chat:
    """The round's language model. Raises RuntimeError where a recipe was not checked for it."""
    if at.llm is None:
        raise RuntimeError(
            "this recipe asks a language model and the run has none; set evolution.llm "
            "(harness.evolve.recipe.check_needs refuses such a recipe)"
        )
    return at.llm


@lru_cache
def role_bundle(name: str) -> Bundle:
    """The bundle `prompts/NAME`."""
    return load(PROMPTS / name)


async def together(jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all to their ends, so that no call under way is paid in vain; then raise the first error,
    those of infrastructure before others."""
    results = await asyncio.gather(*jobs, return_exceptions=True)
    errors = [item for item in results if isinstance(item, BaseException)]
    errors.sort(key=lambda error: not isinstance(error, EvolutionInfraError))
    if errors:
        raise errors[0]
    return [item for item in results if not isinstance(item, BaseException)]


async def answer(
    chat: Chat,
    role: Role,
    text: str,
    model: type[M],
    check: Check[M] | None = None,
    *,
    seed: int,
    attempt: int = 0,
    repairs: int = 1,
) -> M:
    """One question to the role, answered as `model`.

    Raises what `Chat.structured` does."""
    host = _AnswerHost(chat, role, model, check, seed, attempt, repairs)
    task = TaskView(text, "evolution", max_steps=1)
    await _run(role, task, host, Budgets(max_steps=1), seed)
    assert host.value is not None
    return host.value


async def session(
    chat: Chat,
    role: Role,
    bundle: str,
    text: str,
    tools: ToolRegistry,
    *,
    ends: Collection[str],
    seed: int,
    attempt: int = 0,
    max_steps: int = MAX_STEPS,
    max_tokens: int | None = None,
) -> RunResult:
    """An agent session of the role with tools; a successful call of a tool in `ends` ends it.

    Raises what `Chat.ask` does."""
    host = _ToolHost(chat, role, tools, ends, seed, attempt)
    steps = min(max_steps, MAX_STEPS)
    task = tools.offered(TaskView(text, "evolution", max_steps=steps))
    return await _run(bundle, task, host, Budgets(steps, max_tokens), seed)


class _ChatHost:
    """The model side of a role's run. failure: what really ended it."""

    def __init__(self, chat: Chat, role: Role, seed: int, attempt: int) -> None:
        self.chat, self.role, self.seed, self.attempt = chat, role, seed, attempt
        self.failure: EvolutionInfraError | PartFailed | None = None

    async def model(self, request: ModelRequest) -> ModelReply:
        ask = Ask(
            self.role,
            tuple(as_message(message) for message in request.messages),
            tuple(as_function(tool) for tool in request.tools if request.role == "main"),
            max_tokens=request.max_tokens,
            seed=self.seed,
            attempt=self.attempt,
        )
        try:
            return await self.reply(ask, request)
        except (EvolutionInfraError, PartFailed) as error:
            # Through a processor only a HostError passes; `_run` raises the error itself.
            self.failure = error
            kind = "infra" if isinstance(error, EvolutionInfraError) else "budget"
            raise HostError(kind, str(error)) from error

    async def reply(self, ask: Ask, request: ModelRequest) -> ModelReply:
        said = await self.chat.ask(ask)
        finish = said.finish_reason
        try:
            content = without_thinking(readable(said.content))
        except Unreadable:  # all of it was thinking
            content, finish = "", "length"
        calls = tuple(
            ToolCallSpec(id, name, _input(arguments)) for id, name, arguments in said.tool_calls
        )
        return ModelReply(content, calls, finish, said.prompt_tokens, said.completion_tokens)

    async def tool(self, request: ToolRequest) -> ToolReply:
        return ToolReply(f"there is no tool {request.name!r}", is_error=True)


class _AnswerHost(_ChatHost):
    def __init__(
        self,
        chat: Chat,
        role: Role,
        model: type[Any],
        check: Check[Any] | None,
        seed: int,
        attempt: int,
        repairs: int,
    ) -> None:
        super().__init__(chat, role, seed, attempt)
        self.form, self.check, self.repairs = model, check, repairs
        self.value: Any = None

    async def reply(self, ask: Ask, request: ModelRequest) -> ModelReply:
        if request.role != "main":
            return await super().reply(ask, request)
        self.value = await self.chat.structured(ask, self.form, self.check, self.repairs)
        return ModelReply(self.value.model_dump_json())


class _ToolHost(_ChatHost):
    def __init__(
        self,
        chat: Chat,
        role: Role,
        tools: ToolRegistry,
        ends: Collection[str],
        seed: int,
        attempt: int,
    ) -> None:
        super().__init__(chat, role, seed, attempt)
        self.tools, self.ends = tools, ends

    async def tool(self, request: ToolRequest) -> ToolReply:
        reply = await self.tools.call(request.name, request.input)
        return replace(reply, done=request.name in self.ends and not reply.is_error)


async def _run(
    bundle: str, task: TaskView, host: _ChatHost, budgets: Budgets, seed: int
) -> RunResult:
    ran = await run_inprocess(
        role_bundle(bundle),
        task,
        ToolReply(""),
        host,
        seed=seed,
        budgets=budgets,
        trace_level="off",
    )
    if host.failure is not None:
        raise host.failure
    if ran.result.status not in ("completed", "truncated"):
        raise RuntimeError(f"the role bundle {bundle!r} is broken: {ran.result.reason}")
    return ran.result


def _input(arguments: str) -> Mapping[str, Any]:
    """A call's arguments. Not mended: cut-off arguments would become half a file. What is no JSON
    object is handed on under a name that no tool takes, so that the complaint shows it."""
    try:
        value = json.loads(readable(arguments))
    except (ValueError, RecursionError):
        value = None
    return FrozenDict(value if isinstance(value, dict) else {"unreadable_arguments": arguments})
