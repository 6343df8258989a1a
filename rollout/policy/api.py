"""A hosted model behind an OpenAI-compatible API, for runs that evolve the harness only.

One Ray actor holds the key, counts what is spent and keeps the run's budget; workers ask it. The
calls themselves are those of the evolution's language models (harness.evolve.llm.transport).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import ray

from harness.events import ToolCallSpec
from harness.evolve.llm.account import Spent, shortage
from harness.evolve.llm.transport import CallFailed, Endpoint, Reply, estimate
from harness.function_calling import as_function, as_message
from harness.host import ModelReply
from rollout.policy.base import ChatRequest, ContextOverflow, EngineError
from rollout.policy.config import APIConfig
from rollout.policy.remote import call


class BudgetExhausted(EngineError):
    """The run's budget does not cover the next call: no fault of an agent, and no failure."""


class APIActor:
    """The endpoint, its key and the ledger; every method is async, in one process for a run."""

    def __init__(
        self,
        config: APIConfig,
        key: str | None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._config = config
        self._endpoint = Endpoint("policy.api", config, key)
        self._gate = asyncio.Semaphore(config.concurrency)
        self._jitter = random.Random()
        self._sleep = sleep
        self._held = Spent()
        self._ledger: Path | None = None
        self.total = Spent()

    async def open_ledger(self, path: str) -> Spent:
        """Go on with a run's account; what its earlier processes spent counts against the budget.

        Raises EngineError for a file that is no ledger; a last line that a kill cut off is dropped.
        """
        self._ledger = Path(path)
        self.total = Spent()
        lines = self._ledger.read_text().splitlines() if self._ledger.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                self.total += Spent(**json.loads(line))
            except (ValueError, TypeError) as error:
                if number == len(lines):
                    self._ledger.write_text("".join(f"{kept}\n" for kept in lines[:-1]))
                    break
                raise EngineError(
                    f"{path}: line {number} is no entry of an API ledger ({error}); what was spent "
                    "is not known, so the budget cannot be kept: mend or remove the line"
                ) from error
        return self.total

    async def spent(self) -> Spent:
        return self.total

    async def chat(self, request: ChatRequest) -> ModelReply:
        config = self._config
        messages = [as_message(message) for message in request.messages]
        tools = [as_function(tool) for tool in request.tools]
        sampling = request.sampling
        for left in range(config.max_retries, -1, -1):
            try:
                async with self._gate:
                    reply = await self._charged(messages, tools, sampling)
                return _answer(reply)
            except CallFailed as failure:
                if failure.kind == "context":
                    raise ContextOverflow(str(failure)) from failure
                if failure.kind == "next" or not left:
                    tries = config.max_retries - left + 1
                    raise EngineError(f"{failure} (after {tries} tries)") from failure
                await self._sleep(failure.pause_s(config.max_retries - left, self._jitter))
        raise AssertionError("unreachable")

    async def _charged(self, messages: list[Any], tools: list[Any], sampling: Any) -> Reply:
        """One try, paid for however it ends. The most that it can cost is set aside meanwhile."""
        config = self._config
        prompt, most = estimate((*messages, *tools)), sampling.max_tokens
        held = Spent.of(config, prompt, most)
        if short := shortage(config.budget, self.total + self._held, held, "policy.api.budget"):
            raise BudgetExhausted(f"{short}: raise it and resume")
        self._held += held
        try:
            reply = await self._endpoint.call(
                messages, tools, None, most, sampling.temperature, sampling.seed
            )
        except CallFailed as failure:
            self._charge(Spent.of(config, prompt if failure.billed else 0, 0, calls=1, failed=1))
            raise
        finally:
            self._held -= held
        self._charge(Spent.of(config, reply.prompt_tokens, reply.completion_tokens, calls=1))
        return reply

    def _charge(self, spent: Spent) -> None:
        self.total += spent
        if self._ledger is not None:
            with self._ledger.open("a") as file:
                file.write(json.dumps(spent.to_json()) + "\n")


class APIEngine:
    """`ChatEngine` over an `APIActor`. Its handle travels to the workers; the key does not."""

    def __init__(self, actor: Any, config: APIConfig) -> None:
        self._actor, self._config = actor, config

    @classmethod
    async def start(
        cls, config: APIConfig, env: Mapping[str, str] = os.environ, **ray_options: Any
    ) -> APIEngine:
        """Start the actor (Ray must be initialised). Raises LLMSetupError where the key is missing."""
        options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": 1000, "max_restarts": 0}
        actor: Any = ray.remote(APIActor).options(**(options | ray_options))
        engine = cls(actor.remote(config, config.key(env)), config)
        await engine.ready()
        return engine

    async def ready(self) -> None:
        """The actor runs."""
        await self.spent()

    async def chat(self, request: ChatRequest) -> ModelReply:
        """Raises ContextOverflow, and EngineError where the endpoint or the budget ends."""
        return await self._call(self._actor.chat.remote(request), "chat")

    async def open_ledger(self, path: Path) -> Spent:
        """Account to this file from now on, a JSON line a try; what stands there was spent."""
        return await self._call(self._actor.open_ledger.remote(str(path)), "open_ledger")

    async def spent(self) -> Spent:
        return await self._call(self._actor.spent.remote(), "spent")

    async def shutdown(self) -> None:
        ray.kill(self._actor)

    async def _call(self, reference: Any, what: str) -> Any:
        # No deadline here: each try has one, and what waits for its turn is not stuck.
        return await call(reference, None, f"API engine {self._config.model!r}", what)


def _answer(reply: Reply) -> ModelReply:
    """The reply as the harness reads it. Raises CallFailed for what is no answer of the model.

    A call whose arguments are no JSON object stays text, in the form that parse_repair mends.
    """
    if reply.finish_reason not in ("stop", "length", "tool_calls", "function_call"):
        raise CallFailed(
            "next", f"the endpoint withheld the answer (finish reason {reply.finish_reason!r})"
        )
    texts, calls = [reply.content] if reply.content else [], []
    for call_id, name, text in reply.tool_calls:
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            given = None
        if isinstance(given, dict):
            calls.append(ToolCallSpec(call_id, name, given))
        else:
            texts.append(
                f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {text}}}</tool_call>'
            )
    if len(texts) > bool(reply.content):  # one bad call: the harness mends all of them or none
        texts += [
            f"<tool_call>{json.dumps({'name': c.name, 'arguments': c.input})}</tool_call>"
            for c in calls
        ]
        calls = []
    finish = "length" if reply.finish_reason == "length" else "tool_calls" if calls else "stop"
    return ModelReply(
        "\n".join(texts), tuple(calls), finish, reply.prompt_tokens, reply.completion_tokens
    )
