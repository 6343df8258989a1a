"""Runs one episode in a harness process of its own, and trusts nothing that comes back.

The worker keeps the model handle, the environment and the clock: the child only asks. Budgets are
counted here again, the agent trace is made from what was really asked and answered, and a child
cannot claim an infrastructure error (it would not be scored).
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from harness.bundle import Bundle, load
from harness.events import TaskView
from harness.host import Host, ToolReply
from harness.metered import Budgets, MeteredHost
from harness.runloop import RunResult
from harness.sandbox import containment, protocol
from harness.sandbox.containment import MAX_SLOTS, Probe, SandboxUnavailable
from harness.sandbox.episode import Episode, EpisodeEnded
from harness.sandbox.limits import Limits
from harness.sandbox.process import ZygoteProcess
from harness.sandbox.spares import MAX_SPARES, Key, Spares
from harness.trace import Level as TraceLevel
from harness.trace import Trace


class Ran(NamedTuple):
    """One episode: how it ended, its trace as JSON (None at level off), the isolation in force."""

    result: RunResult
    trace: dict[str, Any] | None
    level: str


class Sandbox:
    """Starts harness processes at an isolation level; many episodes at once.

    level: auto (the strongest that works), bubblewrap, landlock, unsafe_local. slots: episodes at
    the same time; more wait. The zygote starts with the first episode and again where it died; it
    ends with the thread that started it (the kernel's parent-death signal is a thread's). For each
    episode that runs another process is made ready, with the same bundle (see harness.sandbox.spares).
    """

    def __init__(self, level: containment.Level = "auto", slots: int = 64) -> None:
        if not 1 <= slots <= MAX_SLOTS:
            raise ValueError(f"sandbox slots {slots}; 1 to {MAX_SLOTS} are expected")
        self.requested = level
        self.slots = slots
        self.refused: list[str] = []  # why stronger ways did not work
        self._zygote: ZygoteProcess | None = None
        self._spares: Spares | None = None
        self._most_spares = min(slots, MAX_SPARES)
        self._endings: set[asyncio.Task[None]] = set()
        self._gate: asyncio.Semaphore | None = None
        self._starting: asyncio.Lock | None = None

    @staticmethod
    def probe() -> Probe:
        """What this machine offers."""
        return containment.probe()

    async def start(self) -> str:
        """Start the zygote if it does not run; the name of the way that worked.

        Raises SandboxUnavailable with every way tried and what it said."""
        return (await self._ready())[0].plan.name

    async def close(self) -> None:
        """End all harness processes; episodes that still run get an infra_error."""
        self._drop()
        await asyncio.gather(*self._endings)

    async def run(
        self,
        bundle: Bundle | str | os.PathLike[str],
        task: TaskView,
        observation: ToolReply,
        host: Host,
        *,
        seed: int,
        budgets: Budgets,
        limits: Limits | None = None,
        trace_level: TraceLevel = "agent",
        run_id: str = "",
    ) -> Ran:
        """Run one episode of `bundle` (or of the bundle in that directory).

        All that evolved code can do ends as a status of the result. Raises BundleError for a
        directory that is no bundle, SandboxUnavailable where no process can be started at all,
        and what `host` raises beside HostError.
        """
        if not isinstance(bundle, Bundle):
            bundle = load(Path(bundle))
        limits = limits or Limits()
        trace = Trace(run_id or uuid.uuid4().hex, trace_level)
        key = Key(bundle.id, trace_level == "full", limits)
        line = _bundle_line(bundle, key.traced)
        await self._ready()
        gate = self._gate
        assert gate is not None
        await gate.acquire()
        episode = None
        try:
            zygote, spares = await self._ready()
            episode = spares.take(key) or Episode(zygote, limits)
            result = await episode.run(
                MeteredHost(host, budgets, time.monotonic, trace),
                line,
                protocol.dump_start(task, observation, seed, budgets, trace_level),
                # Not before: a bundle that does not load needs no second process to try.
                first_call=partial(spares.order, key, line),
            )
        finally:
            ending = asyncio.create_task(_finish(episode, gate))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)
            # One that said it is done has heard its last; any other is seen to its end.
            if episode is None or not episode.clean:
                await asyncio.shield(ending)
        if episode.harness is not None:
            trace.adopt(episode.harness)
        trace.end(result.status, result.reason, result.steps)
        return Ran(result, None if trace_level == "off" else trace.to_json(), episode.level)

    async def _ready(self) -> tuple[ZygoteProcess, Spares]:
        loop = asyncio.get_running_loop()
        if self._zygote is not None and self._zygote.loop is not loop:
            self._drop()
            self._gate = self._starting = None
        if self._gate is None or self._starting is None:
            self._gate, self._starting = asyncio.Semaphore(self.slots), asyncio.Lock()
        async with self._starting:
            if self._zygote is not None and self._zygote.lost:
                self._drop()
            if self._zygote is None or self._spares is None:
                self._zygote = await self._start()
                self._spares = Spares(self._zygote, self._most_spares)
            return self._zygote, self._spares

    def _drop(self) -> None:
        if self._spares is not None:
            self._spares.close()
        if self._zygote is not None:
            self._zygote.close()
        self._zygote = self._spares = None

    async def _start(self) -> ZygoteProcess:
        self.refused = []
        processes = self.slots + self._most_spares
        for plan in containment.plans(self.requested, containment.probe(), processes):
            try:
                zygote = await ZygoteProcess.start(plan, processes)
            except SandboxUnavailable as error:
                self.refused.append(str(error))
                continue
            try:
                await _try_out(zygote)
            except SandboxUnavailable as error:
                zygote.close()
                self.refused.append(str(error))
                continue
            return zygote
        raise SandboxUnavailable(
            f"sandbox level {self.requested!r}: no way to isolate evolved code works here; "
            + " | ".join(self.refused)
            + " | `sandbox: unsafe_local` runs it without isolation"
        )


async def _try_out(zygote: ZygoteProcess) -> None:
    """Fork one child and see that it reports the confinement that was planned."""
    episode = Episode(zygote, Limits())
    try:
        await episode.begin()
    except EpisodeEnded as end:
        raise SandboxUnavailable(f"{zygote.plan.name}: {end.reason}") from end
    finally:
        await episode.finish()


async def _finish(episode: Episode | None, gate: asyncio.Semaphore) -> None:
    """Free the slot once the episode's process is gone."""
    try:
        if episode is not None:
            await episode.finish()
    finally:
        gate.release()


@lru_cache(maxsize=64)
def _bundle_line(bundle: Bundle, traced: bool) -> bytes:
    return protocol.encode(protocol.dump_bundle(bundle, traced), limit=1 << 30)
