"""`Chat`: what the roles of evolution ask language models through.

It tries a role's endpoints in order, counts and charges every call, also the useless ones, stops at
the budget, and journals each answer: a killed round asks again and is answered from the journal.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel

from harness.evolve.journal import Journal
from harness.evolve.llm.account import Spent, shortage
from harness.evolve.llm.config import LLMConfig, Role
from harness.evolve.llm.errors import (
    BudgetExhausted,
    BudgetTooSmall,
    ContextExceeded,
    EndpointError,
    LLMSetupError,
    MalformedOutput,
)
from harness.evolve.llm.output import Unreadable, listed, read, strict_schema
from harness.evolve.llm.transport import CallFailed, Endpoint, Reply, estimate

M = TypeVar("M", bound=BaseModel)
Message = Mapping[str, Any]
Check = Callable[[M], list[str]]
MAX_QUOTED = 4000


@dataclass(frozen=True, slots=True)
class Ask:
    """One question. attempt: tells apart questions that are asked again on purpose. schema: of the
    answer."""

    role: Role
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    schema: Mapping[str, Any] | None = field(default=None)
    max_tokens: int | None = None
    seed: int = 0
    attempt: int = 0


class Chat:
    """The models of one run. Many questions at once; `concurrency` of them in flight.

    journal_path: JSON lines of the run; what they say was spent counts against the budget. rng: for
    the jitter of retries. clock, sleep: seconds. env: where keys are looked up.
    """

    def __init__(
        self,
        config: LLMConfig,
        endpoints: Mapping[str, Endpoint],
        journal: Journal,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.config = config
        self.endpoints = endpoints
        self.journal = journal
        self.spent = Spent()
        self.wall_s = 0.0
        """Seconds in calls since this object was made."""
        self._rng, self._clock, self._sleep = rng, clock, sleep
        self._held = Spent()  # the most that calls in flight may still cost
        self._gate: asyncio.Semaphore | None = None
        self._gate_loop: asyncio.AbstractEventLoop | None = None
        self._failures = 0
        self.dropped: list[str] = []
        """What was dropped in this run, and why; a line each."""
        for key, result in journal.results():
            if key.startswith("dropped/"):
                self._note(result)
            if key.startswith(("answer/", "failed/")):
                self.spent += Spent(**result["spent"])
                self._failures += key.startswith("failed/")

    @classmethod
    def from_config(
        cls,
        config: LLMConfig,
        journal_path: str | os.PathLike[str] | None,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
        env: Mapping[str, str] = os.environ,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> Chat:
        """Raises LLMSetupError where a key or the SDK is missing, before anything is spent."""
        missing = [
            f"{one.api_key_env} (of endpoint {name!r})"
            for name, one in sorted(config.endpoints.items())
            if one.api_key_env and not env.get(one.api_key_env)
        ]
        if missing:
            raise LLMSetupError(
                f"evolution.llm: the environment variables {', '.join(missing)} are not set; export "
                "the keys there, or remove api_key_env where the endpoint wants none"
            )
        endpoints = {
            name: Endpoint(name, one, env[one.api_key_env] if one.api_key_env else None)
            for name, one in config.endpoints.items()
        }
        return cls(config, endpoints, Journal(journal_path), rng, clock, sleep)

    # --- budget ---

    def check_budget(self, rounds: int, per_round: int) -> None:
        """Before anything is spent: raises BudgetTooSmall where the budget does not cover
        min(rounds, 2) rounds of at least `per_round` tokens (see `roles.least_tokens`).

        A run that goes on is not asked again: what is left of its budget is for what is left of it.
        """
        if self.spent.calls:
            return
        need = min(rounds, 2) * per_round
        limit = self.config.budget
        if limit.tokens is not None and limit.tokens < need:
            raise BudgetTooSmall(
                f"evolution.llm.budget.tokens is {limit.tokens}; a round takes at least {per_round} "
                f"tokens, and {min(rounds, 2)} rounds {need}. Raise it, or choose a recipe without a "
                "language model"
            )
        if limit.money is not None:
            price = min(min(e.price_in, e.price_out) for e in self.config.endpoints.values()) / 1e6
            if limit.money < need * price:
                raise BudgetTooSmall(
                    f"evolution.llm.budget.money is {limit.money:g}; {min(rounds, 2)} rounds take at "
                    f"least {need * price:g}. Raise it, or name cheaper endpoints"
                )

    # --- asking ---

    async def ask(self, ask: Ask) -> Reply:
        """The reply, from the journal where it was given before.

        Raises EndpointError, BudgetExhausted, ContextExceeded."""

        async def compute() -> Any:
            endpoint, reply, spent = await self._answered(ask)
            return {"endpoint": endpoint, "reply": asdict(reply), "spent": spent.to_json()}

        inputs = {
            "messages": list(ask.messages),
            "tools": list(ask.tools),
            "schema": ask.schema,
            "max_tokens": ask.max_tokens,
            "seed": ask.seed,
            "attempt": ask.attempt,
        }
        found = await self.journal.once(f"answer/{ask.role}", inputs, compute)
        reply = found["reply"]
        return Reply(**{**reply, "tool_calls": tuple(tuple(call) for call in reply["tool_calls"])})

    async def structured(
        self, ask: Ask, model: type[M], check: Check[M] | None = None, repairs: int = 1
    ) -> M:
        """The answer as `model`; check: what is wrong with one that parses, for the model to read.

        A wrong answer is handed back with the complaint `repairs` times. Raises MalformedOutput,
        and what `ask` raises."""
        schema = strict_schema(model)
        messages = ask.messages
        for left in range(repairs, -1, -1):
            question = Ask(
                ask.role, messages, ask.tools, schema, ask.max_tokens, ask.seed, ask.attempt
            )
            reply = await self.ask(question)
            try:
                answer = read(reply.content, reply.finish_reason, model)
                if problems := check(answer) if check else []:
                    raise Unreadable(listed(problems))
                return answer
            except Unreadable as error:
                if not left:
                    tries = f"{repairs + 1} answers" if repairs else "the answer"
                    raise MalformedOutput(
                        f"{ask.role}: {tries} could not be used; the last: {error}"
                    ) from error
                messages = (
                    *messages,
                    {"role": "assistant", "content": reply.content[:MAX_QUOTED]},
                    {
                        "role": "user",
                        "content": f"That answer cannot be used: {error}.\nAnswer again, whole, with "
                        "one JSON object of the form that was asked for and nothing around it.",
                    },
                )
        raise AssertionError("unreachable")

    async def drop(self, role: Role, what: str, reason: str) -> None:
        """Keep why a piece of a role's work was dropped, in the journal and in `dropped`."""

        async def compute() -> Any:
            return {"role": role, "what": what, "reason": reason}

        self._note(await self.journal.once(f"dropped/{role}", [what, reason], compute))

    def _note(self, entry: Mapping[str, str]) -> None:
        line = f"{entry['role']}: {entry['what']}: {entry['reason']}"
        if line not in self.dropped:
            self.dropped.append(line)

    async def close(self) -> None:
        """End all connections."""
        for endpoint in self.endpoints.values():
            await endpoint.close()

    async def _answered(self, ask: Ask) -> tuple[str, Reply, Spent]:
        """Try the role's endpoints in order."""
        said: list[str] = []
        too_long = True
        for name in self.config.of(ask.role):
            endpoint = self.endpoints[name]
            for left in range(endpoint.config.max_retries, -1, -1):
                try:
                    async with self._slot():
                        reply, spent = await self._tried(ask, endpoint)
                    return name, reply, spent
                except CallFailed as failure:
                    last = failure
                if last.kind != "retry" or not left:
                    break
                await self._sleep(last.pause_s(endpoint.config.max_retries - left, self._rng))
            said.append(str(last))
            too_long = too_long and last.kind == "context"
        if too_long:
            raise ContextExceeded(f"{ask.role}: {' | '.join(said)}")
        raise EndpointError(
            f"{ask.role}: no endpoint answered: {' | '.join(said)}. Mend the endpoint and resume "
            "the round"
        )

    async def _tried(self, ask: Ask, endpoint: Endpoint) -> tuple[Reply, Spent]:
        """One call, charged however it ends. The most that it can cost is set aside meanwhile.

        Raises BudgetExhausted."""
        config = endpoint.config
        prompt = estimate((*ask.messages, *ask.tools))
        most = ask.max_tokens or self.config.max_tokens
        held = Spent.of(config, prompt, most)
        used = self.spent + self._held
        if short := shortage(self.config.budget, used, held, "evolution.llm.budget"):
            raise BudgetExhausted(f"{ask.role}: {short}")
        self._held += held
        started = self._clock()
        try:
            reply = await endpoint.call(
                ask.messages, ask.tools, ask.schema, most, self.config.temperature,
                ask.seed + ask.attempt,
            )  # fmt: skip
        except CallFailed as failure:
            spent = Spent.of(config, prompt if failure.billed else 0, 0, calls=1, failed=1)
            await self._failed(ask, endpoint, failure, spent)
            raise
        finally:
            self.wall_s += self._clock() - started
            self._held -= held
        spent = Spent.of(config, reply.prompt_tokens, reply.completion_tokens, calls=1)
        self.spent += spent
        return reply, spent

    async def _failed(
        self, ask: Ask, endpoint: Endpoint, failure: CallFailed, spent: Spent
    ) -> None:
        """Charge a call without a reply, and keep the charge."""
        self.spent += spent
        self._failures += 1

        async def compute() -> Any:
            return {"endpoint": endpoint.name, "error": str(failure), "spent": spent.to_json()}

        await self.journal.once(f"failed/{ask.role}", self._failures, compute)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        if self._gate is None or self._gate_loop is not loop:
            self._gate, self._gate_loop = asyncio.Semaphore(self.config.concurrency), loop
        async with self._gate:
            yield
