"""Batches the model requests of many episodes: what one engine call holds is decided here.

Episodes run in slots, one after the other in each. `Lockstep` waits until every live slot asks, so
that the batches depend on the episodes alone and never on timing: the same episodes give the same
calls, and a serial engine the same samples. `Immediate` passes each request on at once, for engines
that batch continuously by themselves.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from rollout.policy.base import ContextOverflow, EngineError, PolicyEngine, Request, Sample


class Batcher(Protocol):
    """`generate` answers one request of the episode that runs in `slot`.

    enter: the slot will run episodes. drop: its episode is over, requests of it that are still
    open have nobody to answer. leave: the slot runs no more.
    """

    def enter(self, slot: int) -> None: ...

    def drop(self, slot: int) -> None: ...

    def leave(self, slot: int) -> None: ...

    async def generate(self, slot: int, request: Request) -> Sample: ...


class Immediate:
    """One engine call a request."""

    def __init__(self, engine: PolicyEngine) -> None:
        self._engine = engine

    def enter(self, slot: int) -> None: ...

    def drop(self, slot: int) -> None: ...

    def leave(self, slot: int) -> None: ...

    async def generate(self, slot: int, request: Request) -> Sample:
        return (await self._engine.generate([request]))[0]


@dataclass(slots=True)
class _Waiting:
    request: Request
    future: asyncio.Future[Sample] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Lockstep:
    """One engine call for all live slots, in the order of their numbers.

    A slot whose episode hangs holds the others back until that episode's deadline; an episode that
    asks twice at once (a sub-agent) is answered in the same call.
    """

    def __init__(self, engine: PolicyEngine) -> None:
        self._engine = engine
        self._live: set[int] = set()
        self._waiting: dict[int, list[_Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def enter(self, slot: int) -> None:
        self._live.add(slot)

    def drop(self, slot: int) -> None:
        self._waiting.pop(slot, None)

    def leave(self, slot: int) -> None:
        self._live.discard(slot)
        self.drop(slot)
        self._flush_when_all_wait()

    async def generate(self, slot: int, request: Request) -> Sample:
        if slot not in self._live:
            raise ValueError(f"slot {slot} asks for a sample without having entered")
        waiting = _Waiting(request)
        self._waiting.setdefault(slot, []).append(waiting)
        self._flush_when_all_wait()
        return await waiting.future

    def _flush_when_all_wait(self) -> None:
        if self._waiting and self._waiting.keys() >= self._live:
            batch = [w for key in sorted(self._waiting) for w in self._waiting[key]]
            self._waiting = {}
            task = asyncio.get_running_loop().create_task(self._answer(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, batch: list[_Waiting]) -> None:
        try:
            samples = await self._engine.generate([w.request for w in batch])
        except (EngineError, ContextOverflow) as error:
            for waiting in batch:
                if not waiting.future.done():
                    waiting.future.set_exception(error)
            return
        for waiting, sample in zip(batch, samples, strict=True):
            if not waiting.future.done():
                waiting.future.set_result(sample)
