"""Runs over one started machinery, one after another; the only place that knows every failure."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ray.exceptions import RayError
from rich.console import Console

from coevo import events, logs
from coevo.base_policy import BasePolicyError
from coevo.best_of_n import BestOfNRun
from coevo.cli import EXIT_BAD_INPUT, EXIT_BUG, EXIT_STOPPED
from coevo.config import RunConfig
from coevo.evolving import EvolutionAborted
from coevo.integrity import repair
from coevo.live import LiveTable
from coevo.loop import Loop
from coevo.metrics import MetricsError
from coevo.records import RecordError, Summary
from coevo.rundir import RunDir
from coevo.seed_model import SeedModelError
from coevo.stack import RayStartError, Stack, StackError
from coevo.stop import STOP, StopRequested
from coevo.training import PublishError
from harness.evolve.journal import JournalError
from harness.sandbox.containment import SandboxUnavailable
from harness.store import StoreError
from rollout.buffer import ReplayError
from rollout.policy.base import EngineError
from rollout.pool import RolloutError
from trainer.errors import TrainerError

T = TypeVar("T")

INFRASTRUCTURE = (EngineError, RolloutError, TrainerError, EvolutionAborted, RayError,
                  RayStartError)  # fmt: skip
BROKEN = (PublishError, ReplayError, StoreError, JournalError, MetricsError, RecordError)
UNMET = (StackError, SandboxUnavailable, SeedModelError, BasePolicyError)
_log = logging.getLogger(__name__)

KNOWN = (*INFRASTRUCTURE, *BROKEN, *UNMET, StopRequested, KeyboardInterrupt, OSError,
         BaseExceptionGroup)  # fmt: skip
STORAGE = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the quota is used up; free some space",
    errno.EIO: "the disk has an I/O error; see the kernel's log",
    errno.ESTALE: "the shared file system lost a file that was open",
}
"""Errors of the operating system that say nothing of the program."""
BEAT_S = 5.0
"""Seconds between two signs of life of a run: how exactly the work lost by a kill is known."""


class SessionError(RuntimeError):
    """A run that ended for a known reason. `code`: the exit code of it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def failure(error: BaseException) -> tuple[str, int] | None:
    """(message, exit code) of a failure that is known; None for a bug."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        told = [failure(e) for e in error.exceptions]
        if any(t is None for t in told):
            return None
        return "; ".join(dict.fromkeys(t[0] for t in told if t)), max(t[1] for t in told if t)
    if isinstance(error, UNMET):
        return str(error), EXIT_BAD_INPUT
    if isinstance(error, BROKEN):
        return str(error), EXIT_BUG
    if isinstance(error, (*INFRASTRUCTURE, StopRequested)):
        return str(error), EXIT_STOPPED
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", EXIT_STOPPED
    if isinstance(error, OSError) and error.errno in STORAGE:
        return f"{STORAGE[error.errno]} ({error})", EXIT_STOPPED
    return None


def run_all(
    runs: Sequence[tuple[RunDir, RunConfig]], model: Path | None, console: Console
) -> Iterator[RunDir]:
    """Run each; yields the run that is next, then its summary is printed.

    Raises SessionError for every failure that is known; what else is raised is a bug."""
    with _session(model, console) as session:
        for run, config in runs:
            yield run
            with run, logs.logging_to(run.path), _attempt(run):
                repair(run, config, console.print)
                stack = session.stack(config)
                summary = session.runner.run(_one(run, config, stack, console))
            _print_end(run, summary, console)


def run_over(
    config: RunConfig,
    model: Path | None,
    console: Console,
    work: Callable[[Stack], Coroutine[Any, Any, T]],
) -> T:
    """The result of `work` over engines that are started for it. Raises SessionError as `run_all`."""
    with _session(model, console) as session:
        return session.runner.run(work(session.stack(config)))


@dataclass(slots=True)
class _Session:
    """An event loop and, from the first call of `stack` on, the machinery that it drives."""

    runner: asyncio.Runner
    model: Path | None
    console: Console
    started: Stack | None = None

    def stack(self, config: RunConfig) -> Stack:
        if self.started is None:
            note = self.console.print
            self.started = self.runner.run(Stack.start(config, self.model, lambda text: note(text)))
            note(f"harness isolation: {self.started.level}")
        return self.started


@contextmanager
def _session(model: Path | None, console: Console) -> Iterator[_Session]:
    """Closes what was started. Raises SessionError for every failure that is known."""
    STOP.listen()
    with asyncio.Runner() as runner:
        session = _Session(runner, model, console)
        try:
            yield session
        except KNOWN as error:
            told = failure(error)
            if told is None:
                raise
            raise SessionError(*told) from error
        finally:
            if session.started is not None:
                runner.run(session.started.close())


@contextmanager
def _attempt(run: RunDir) -> Iterator[None]:
    """Its start and end among the run's events."""
    events.begin(run.path)
    try:
        yield
    except BaseException as error:
        message, code = failure(error) or (f"a bug: {error!r}", EXIT_BUG)
        _log.error(
            "the run ends with %d: %s", code, message,
            exc_info=code == EXIT_BUG, extra={"quiet": True},
        )  # fmt: skip
        try:
            events.end(run.path, code, message)
        except OSError as full:
            error.add_note(f"nor could its end be recorded: {full}")
        raise
    events.end(run.path, 0, "done")


async def _beat(run: RunDir) -> None:
    while True:
        events.beat(run.path)
        await asyncio.sleep(BEAT_S)


async def _one(run: RunDir, config: RunConfig, stack: Stack, console: Console) -> Summary:
    title = f"{config.name}: mode {config.mode}, seed {config.seed}, {config.rounds} rounds"
    await stack.begin(config)
    with LiveTable(config.rounds, title, console=console) as live:
        kind = BestOfNRun if config.mode == "best_of_n" else Loop
        loop = kind(run, config, stack, live)
        events.resumed(run.path, [key for key, _ in loop.journal.results()])
        beat = asyncio.create_task(_beat(run))
        try:
            return await loop.go()
        finally:
            beat.cancel()


def _print_end(run: RunDir, summary: Summary, console: Console) -> None:
    first, last = summary.initial.heldout, summary.final.heldout
    if first is not None and last is not None:
        console.print(
            f"held-out success {first.success:.1%} → {last.success:.1%} "
            f"[{last.lo:.1%}, {last.hi:.1%}] (n = {last.n}); "
            f"{summary.tokens.total:,} tokens, {summary.wall_s:.0f} s"
        )
    console.print(f"run directory: {run.path}", highlight=False)
