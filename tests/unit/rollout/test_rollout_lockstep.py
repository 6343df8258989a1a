"""Batches of a lockstep worker depend on the episodes alone."""

from __future__ import annotations

import asyncio
import random

import pytest

from rollout.lockstep import Immediate, Lockstep
from rollout.policy.base import EngineError, Request, Sample, Sampling


class Recorder:
    """An engine that keeps the batches it was asked for."""

    def __init__(self, fail: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.fail = fail

    async def generate(self, requests: list[Request]) -> list[Sample]:
        self.batches.append([r.prompt_ids[0] for r in requests])
        await asyncio.sleep(0)
        if self.fail:
            raise EngineError("gone")
        return [Sample((r.prompt_ids[0],), (0.0,), "stop", 0) for r in requests]


async def play(batcher: Lockstep, steps: dict[int, int], rng: random.Random) -> list[int]:
    """Slot s asks steps[s] times, each time after a random number of pauses."""
    got: list[int] = []

    async def serve(slot: int) -> None:
        for step in range(steps[slot]):
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            sample = await batcher.generate(slot, Request((100 * slot + step,), Sampling()))
            got.append(sample.token_ids[0])
        batcher.leave(slot)

    for slot in steps:
        batcher.enter(slot)
    await asyncio.gather(*(serve(slot) for slot in steps))
    return got


def test_the_batches_are_the_same_whatever_the_timing() -> None:
    steps = {0: 3, 1: 1, 2: 5, 3: 2}
    seen = []
    for seed in range(20):
        engine = Recorder()
        got = asyncio.run(play(Lockstep(engine), steps, random.Random(seed)))  # type: ignore[arg-type]
        assert sorted(got) == sorted(100 * s + k for s, n in steps.items() for k in range(n))
        seen.append(engine.batches)
    assert all(batches == seen[0] for batches in seen)
    assert seen[0][0] == [0, 100, 200, 300]
    assert seen[0][-1] == [204]


def test_an_engine_error_reaches_every_waiting_episode() -> None:
    async def both() -> list[object]:
        batcher = Lockstep(Recorder(fail=True))  # type: ignore[arg-type]
        batcher.enter(0)
        batcher.enter(1)
        asks = (batcher.generate(s, Request((s,), Sampling())) for s in (0, 1))
        return await asyncio.gather(*asks, return_exceptions=True)

    assert [type(e) for e in asyncio.run(both())] == [EngineError, EngineError]


def test_a_dropped_episode_is_not_asked_for_and_holds_nobody_back() -> None:
    async def one() -> tuple[list[list[int]], int]:
        engine = Recorder()
        batcher = Lockstep(engine)  # type: ignore[arg-type]
        batcher.enter(0)
        batcher.enter(1)
        gone = asyncio.create_task(batcher.generate(0, Request((1,), Sampling())))
        await asyncio.sleep(0)
        gone.cancel()
        batcher.drop(0)
        batcher.leave(0)
        sample = await batcher.generate(1, Request((2,), Sampling()))
        return engine.batches, sample.token_ids[0]

    assert asyncio.run(one()) == ([[2]], 2)


def test_a_slot_that_never_entered_is_refused() -> None:
    with pytest.raises(ValueError, match="without having entered"):
        asyncio.run(Lockstep(Recorder()).generate(7, Request((1,), Sampling())))  # type: ignore[arg-type]


def test_immediate_asks_for_each_request_alone() -> None:
    engine = Recorder()
    batcher = Immediate(engine)  # type: ignore[arg-type]

    async def two() -> None:
        await asyncio.gather(*(batcher.generate(s, Request((s,), Sampling())) for s in (0, 1)))

    asyncio.run(two())
    assert sorted(engine.batches) == [[0], [1]]
