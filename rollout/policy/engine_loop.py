"""The thread that drives an engine's steps: which request runs when, apart from any engine.

Jobs are answered in the order in which they were submitted. A control job (a weight update, a
health check) runs alone: it waits for the running requests and holds back those behind it, so no
answer mixes two policy versions.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from rollout.policy.base import EngineAsleep, EngineError

Item = TypeVar("Item", contravariant=True)
Answer = TypeVar("Answer", covariant=True)
In = TypeVar("In")
Out = TypeVar("Out")


class StepEngine(Protocol[Item, Answer]):
    """What the loop drives: an engine that computes in steps, all on the loop's thread."""

    def add(self, request_id: str, item: Item) -> None: ...

    def abort(self, request_ids: Sequence[str]) -> None: ...

    def step(self) -> Sequence[tuple[str, Answer]]:
        """One step; the requests that it finished, by id."""
        ...


@dataclass(slots=True)
class _Batch(Generic[In, Out]):
    items: Sequence[In]
    future: Future[list[Out]]
    answers: dict[int, Out] = field(default_factory=dict)


@dataclass(slots=True)
class _Control:
    action: Callable[[], Any]
    future: Future[Any]


class EngineLoop(Generic[In, Out]):
    """Runs batches of requests on a `StepEngine` in one thread.

    A ValueError or EngineAsleep from `add` refuses that batch, an EngineError or ValueError from a
    control job is its caller's. Any other exception ends the loop, is raised from every open
    future, and every later `submit` raises EngineError.
    """

    def __init__(
        self, engine: StepEngine[In, Out], batching: Literal["serial", "continuous"] = "serial"
    ) -> None:
        self._engine = engine
        self._serial = batching == "serial"
        self._inbox: queue.SimpleQueue[_Batch[In, Out] | _Control | None] = queue.SimpleQueue()
        self._waiting: deque[_Batch[In, Out] | _Control] = deque()
        self._running: dict[int, _Batch[In, Out]] = {}
        self._stopping = False
        self._count = 0
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="engine-loop")
        self._pump = self._executor.submit(self._run)
        self._pump.add_done_callback(self._fail_open)

    def submit(self, items: Sequence[In]) -> Future[list[Out]]:
        """Queue a batch; its answers come in the order of `items`."""
        future: Future[list[Out]] = Future()
        self._put(_Batch(items, future))
        return future

    def call(self, action: Callable[[], Any]) -> Future[Any]:
        """Queue a control job, run alone on the loop's thread."""
        future: Future[Any] = Future()
        self._put(_Control(action, future))
        return future

    def close(self) -> None:
        """Finish the jobs queued so far, then end the thread."""
        self._inbox.put(None)
        self._executor.shutdown(wait=True)

    @property
    def open_jobs(self) -> int:
        return self._inbox.qsize() + len(self._waiting) + len(self._running)

    def _put(self, job: _Batch[In, Out] | _Control) -> None:
        if self._pump.done():
            self._raise_ended()
        self._inbox.put(job)
        if self._pump.done():  # it ended between the check and the put: nobody will answer
            self._fail_open(self._pump)

    def _raise_ended(self) -> None:
        error = self._pump.exception()
        raise EngineError(
            f"the engine no longer runs ({error or 'it was shut down'}); start a new one"
        ) from error

    def _run(self) -> None:
        while True:
            self._receive(block=not self._running and not self._waiting and not self._stopping)
            self._admit()
            if self._running:
                self._route(self._engine.step())
            elif self._stopping and not self._waiting:
                return

    def _receive(self, *, block: bool) -> None:
        while True:
            try:
                job = self._inbox.get(block=block)
            except queue.Empty:
                return
            if job is None:
                self._stopping = True
            else:
                self._waiting.append(job)
            block = False

    def _admit(self) -> None:
        while self._waiting:
            job = self._waiting[0]
            if self._running and (self._serial or isinstance(job, _Control)):
                return
            # Taken from the queue last, so that an error that ends the loop reaches its future.
            if isinstance(job, _Control):
                try:
                    job.future.set_result(job.action())
                except (EngineError, ValueError) as error:
                    job.future.set_exception(error)
            elif job.items:
                self._start(job)
            else:
                job.future.set_result([])
            self._waiting.popleft()

    def _start(self, job: _Batch[In, Out]) -> None:
        self._count += 1
        added: list[str] = []
        try:
            for index, item in enumerate(job.items):
                self._engine.add(f"{self._count}-{index}", item)
                added.append(f"{self._count}-{index}")
        except (ValueError, EngineAsleep) as error:  # malformed, or too early: the engine is well
            self._engine.abort(added)
            job.future.set_exception(error)
            return
        self._running[self._count] = job

    def _route(self, finished: Sequence[tuple[str, Out]]) -> None:
        for request_id, answer in finished:
            number, index = (int(part) for part in request_id.split("-"))
            batch = self._running[number]
            batch.answers[index] = answer
            if len(batch.answers) == len(batch.items):
                del self._running[number]
                batch.future.set_result([batch.answers[i] for i in range(len(batch.items))])

    def _fail_open(self, pump: Future[None]) -> None:
        error = pump.exception() or EngineError("the engine was shut down")
        self._receive(block=False)
        for job in (*self._running.values(), *self._waiting):
            if not job.future.done():
                job.future.set_exception(error)
        self._running.clear()
        self._waiting.clear()
