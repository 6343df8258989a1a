"""Which request runs when: the engine's thread, with an engine made of counters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal

import pytest

from rollout.policy.base import EngineAsleep, EngineError
from rollout.policy.engine_loop import EngineLoop


class Counting:
    """Answers each item after as many steps as the item says, with what it ran beside."""

    def __init__(self) -> None:
        self.open: dict[str, int] = {}
        self.beside: dict[str, set[str]] = {}
        self.gate = threading.Semaphore(0)
        self.gated = False
        self.asleep = False
        self.fail: Callable[[], None] | None = None

    def add(self, request_id: str, item: int) -> None:
        if self.asleep:
            raise EngineAsleep("publish weights")
        if item < 0:
            raise ValueError(f"item {item}")
        self.open[request_id] = item
        self.beside[request_id] = set()

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            del self.open[request_id]

    def step(self) -> list[tuple[str, int]]:
        if self.gated:
            self.gate.acquire()
        if self.fail is not None:
            self.fail()
        for request_id in self.open:
            self.beside[request_id] |= {key.split("-")[0] for key in self.open}
            self.open[request_id] -= 1
        done = [key for key, left in self.open.items() if left <= 0]
        for key in done:
            del self.open[key]
        return [(key, len(self.beside[key])) for key in reversed(done)]


def gated(batching: Literal["serial", "continuous"]) -> tuple[Counting, EngineLoop[int, int]]:
    engine = Counting()
    engine.gated = True
    return engine, EngineLoop(engine, batching)


def release(engine: Counting) -> None:
    engine.gated = False
    engine.gate.release(100)


def test_serial_batches_never_run_beside_each_other() -> None:
    engine, loop = gated("serial")
    futures = [loop.submit([3, 1]), loop.submit([2]), loop.submit([])]
    release(engine)
    assert [f.result(5) for f in futures] == [[1, 1], [1], []]
    loop.close()


def test_continuous_batches_join_the_running_one() -> None:
    engine, loop = gated("continuous")
    futures = [loop.submit([5]), loop.submit([5])]
    release(engine)
    assert max(max(f.result(5)) for f in futures) == 2
    loop.close()


def test_answers_come_in_the_order_of_the_items() -> None:
    class Echo(Counting):
        def step(self) -> list[tuple[str, int]]:
            return [(key, int(key.split("-")[1])) for key, _ in reversed(super().step())]

    loop: EngineLoop[int, int] = EngineLoop(Echo())
    assert loop.submit([4, 1, 3, 2]).result(5) == [0, 1, 2, 3]
    loop.close()


@pytest.mark.parametrize("batching", ["serial", "continuous"])
def test_a_control_job_runs_alone_and_in_its_turn(
    batching: Literal["serial", "continuous"],
) -> None:
    engine, loop = gated(batching)
    before = loop.submit([3])
    seen = loop.call(lambda: (before.done(), dict(engine.open), after.done()))
    after = loop.submit([1])
    release(engine)
    assert seen.result(5) == (True, {}, False)
    assert after.result(5) == [1]
    loop.close()


def test_a_malformed_item_refuses_its_batch_and_leaves_nothing_behind() -> None:
    engine = Counting()
    loop: EngineLoop[int, int] = EngineLoop(engine)
    with pytest.raises(ValueError, match="item -1"):
        loop.submit([2, -1]).result(5)
    assert engine.open == {}
    assert loop.submit([1]).result(5) == [1]
    loop.close()


def test_a_sleeping_engine_refuses_a_batch_and_serves_the_next_when_it_wakes() -> None:
    engine = Counting()
    loop: EngineLoop[int, int] = EngineLoop(engine)
    loop.call(lambda: setattr(engine, "asleep", True)).result(5)
    with pytest.raises(EngineAsleep, match="publish weights"):
        loop.submit([1]).result(5)
    loop.call(lambda: setattr(engine, "asleep", False)).result(5)
    assert loop.submit([1]).result(5) == [1]
    loop.close()


def test_a_refused_control_job_leaves_the_engine_well() -> None:
    loop: EngineLoop[int, int] = EngineLoop(Counting())

    def refuse() -> None:
        raise EngineError("fingerprint")

    with pytest.raises(EngineError, match="fingerprint"):
        loop.call(refuse).result(5)
    assert loop.submit([1]).result(5) == [1]
    loop.close()


def test_a_broken_engine_fails_every_open_job_and_every_later_one() -> None:
    engine, loop = gated("serial")
    futures = [loop.submit([3]), loop.submit([3]), loop.call(lambda: None)]

    def die() -> None:
        raise KeyError("out of blocks")

    engine.fail = die
    release(engine)
    for future in futures:
        with pytest.raises(KeyError, match="out of blocks"):
            future.result(5)
    with pytest.raises(EngineError, match="no longer runs"):
        loop.submit([1])


def test_closing_answers_what_was_queued() -> None:
    loop: EngineLoop[int, int] = EngineLoop(Counting())
    futures = [loop.submit([2]) for _ in range(5)]
    loop.close()
    assert [f.result(0) for f in futures] == [[1]] * 5
    with pytest.raises(EngineError, match="shut down"):
        loop.call(lambda: None)
