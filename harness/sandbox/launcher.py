"""Runs one episode in a harness process of its own, and trusts nothing that comes back.

The worker keeps the model handle, the environment and the clock: the child only asks. Budgets are
counted here again, the agent trace is made from what was really asked and answered, and a child
cannot claim an infrastructure error (it would not be scored).
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.bundle import Bundle, load
from harness.events import TaskView
from harness.host import Host, HostError, ToolReply
from harness.metered import Budgets, MeteredHost
from harness.runloop import TASK_END_S, RunResult
from harness.sandbox import containment, protocol
from harness.sandbox.containment import MAX_SLOTS, Plan, Probe, SandboxUnavailable
from harness.sandbox.limits import Limits
from harness.sandbox.process import START_S, Child, ZygoteProcess
from harness.trace import Level as TraceLevel
from harness.trace import Trace, TraceError

GRACE_S = TASK_END_S + 5.0
"""Seconds past its wall budget after which a child that has not ended by itself is killed."""


class Ran(NamedTuple):
    """One episode: how it ended, its trace as JSON (None at level off), the isolation in force."""

    result: RunResult
    trace: dict[str, Any] | None
    level: str


class Sandbox:
    """Starts harness processes at an isolation level; many episodes at once.

    level: auto (the strongest that works), bubblewrap, landlock, unsafe_local. slots: episodes at
    the same time; more wait. The zygote starts with the first episode and again where it died; it
    ends with the thread that started it (the kernel's parent-death signal is a thread's).
    """

    def __init__(self, level: containment.Level = "auto", slots: int = 64) -> None:
        if not 1 <= slots <= MAX_SLOTS:
            raise ValueError(f"sandbox slots {slots}; 1 to {MAX_SLOTS} are expected")
        self.requested = level
        self.slots = slots
        self.refused: list[str] = []  # why stronger ways did not work
        self._zygote: ZygoteProcess | None = None
        self._gate: asyncio.Semaphore | None = None
        self._starting: asyncio.Lock | None = None

    @staticmethod
    def probe() -> Probe:
        """What this machine offers."""
        return containment.probe()

    async def start(self) -> str:
        """Start the zygote if it does not run; the name of the way that worked.

        Raises SandboxUnavailable with every way tried and what it said."""
        return (await self._ready()).plan.name

    async def close(self) -> None:
        """End all harness processes; episodes that still run get an infra_error."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

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
        zygote = await self._ready()
        assert self._gate is not None
        async with self._gate:
            if zygote.lost:
                zygote = await self._ready()
            episode = _Episode(zygote, MeteredHost(host, budgets, time.monotonic, trace), limits)
            start = protocol.dump_start(task, observation, seed, budgets, trace_level)
            result = await episode.run(_bundle_line(bundle), start)
        if episode.harness is not None:
            trace.adopt(episode.harness)
        trace.end(result.status, result.reason, result.steps)
        return Ran(result, None if trace_level == "off" else trace.to_json(), episode.level)

    async def _ready(self) -> ZygoteProcess:
        loop = asyncio.get_running_loop()
        if self._zygote is not None and self._zygote.loop is not loop:
            self._zygote.close()
            self._zygote = self._gate = self._starting = None
        if self._gate is None or self._starting is None:
            self._gate, self._starting = asyncio.Semaphore(self.slots), asyncio.Lock()
        async with self._starting:
            if self._zygote is None or self._zygote.lost:
                self._zygote = await self._start()
            return self._zygote

    async def _start(self) -> ZygoteProcess:
        self.refused = []
        for plan in containment.plans(self.requested, containment.probe(), self.slots):
            try:
                zygote = await ZygoteProcess.start(plan, self.slots)
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
    episode = _Episode(zygote, None, Limits())
    try:
        await episode.begin()
    except _Ended as end:
        raise SandboxUnavailable(f"{zygote.plan.name}: {end.reason}") from end
    finally:
        await episode.finish()


@lru_cache(maxsize=64)
def _bundle_line(bundle: Bundle) -> bytes:
    return protocol.encode(protocol.dump_bundle(bundle), limit=1 << 30)


class _Ended(Exception):
    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class _Episode:
    """The worker's side of one harness process."""

    def __init__(self, zygote: ZygoteProcess, host: MeteredHost | None, limits: Limits) -> None:
        self.zygote = zygote
        self.host = host
        self.limits = limits
        self.level = zygote.plan.name
        self.harness: object = None
        self.child: Child | None = None
        self.pending: set[asyncio.Task[None]] = set()
        self.crash: BaseException | None = None
        self.calls = 0
        self.steps = 0
        self.talking = False
        self.writer: asyncio.StreamWriter | None = None

    async def run(self, bundle_line: bytes, start: dict[str, Any]) -> RunResult:
        assert self.host is not None
        wall = self.host.budgets.wall_s
        self.wall = self.zygote.loop.time() + (wall or self.limits.wall_s) + GRACE_S
        try:
            await self.begin()
            self.send(bundle_line + protocol.encode(start))
            result = await self.converse()
        except _Ended as end:
            result = RunResult(end.status, end.reason, self.steps, "")  # type: ignore[arg-type]
        finally:
            await self.finish()
        failure = self.host.failure
        if failure is not None and failure.kind == "infra":
            return RunResult("infra_error", str(failure), result.steps, result.output)
        return result

    async def begin(self) -> None:
        """Fork the child and check what it reports of its confinement."""
        ours, theirs = socket.socketpair()
        try:
            self.child = await self.zygote.spawn(theirs, self.limits)
        except ConnectionError as error:
            ours.close()
            raise _Ended("infra_error", f"no harness process: {error}") from error
        finally:
            theirs.close()
        self.reader, self.writer = await asyncio.open_unix_connection(
            sock=ours, limit=protocol.MAX_LINE
        )
        try:
            async with asyncio.timeout(START_S):
                line = await self.reader.readline()
        except (TimeoutError, ConnectionResetError):
            line = b""
        if not line:
            ended = await self.zygote.end(self.child)
            raise _Ended("infra_error", f"the harness process did not start: {ended.describe()}")
        # Nothing of the bundle has run yet: this line is the confined child's own.
        ready = protocol.decode(line)
        plan: Plan = self.zygote.plan
        if (plan.confinement.landlock and not ready["landlock"]) or (
            plan.confinement.seccomp and not ready["seccomp"]
        ):
            raise _Ended("infra_error", f"the harness process is not confined: {ready}")
        parts = ["bubblewrap"] if plan.name == "bubblewrap" else []
        parts += ["landlock"] if ready["landlock"] else []
        parts += ["seccomp"] if ready["seccomp"] else []
        self.level = "+".join(parts) or "unsafe_local"

    async def converse(self) -> RunResult:
        """Answer the child until it is done. Raises _Ended where it is not to be trusted more."""
        loop = self.zygote.loop
        try:
            async with asyncio.timeout_at(self.deadline()) as self.timer:
                self.talking = True
                while True:
                    try:
                        line = await self.reader.readline()
                    except ValueError as error:
                        raise protocol.ProtocolError(
                            f"a line has more than {protocol.MAX_LINE} bytes"
                        ) from error
                    if not line:
                        break
                    message = protocol.decode(line)
                    if message.get("type") == "done":
                        return self.done(message)
                    self.ask(message)
        except (protocol.ProtocolError, TraceError) as error:
            raise _Ended("harness_error", f"broke the protocol: {error}") from error
        except ConnectionResetError:
            pass
        except TimeoutError as error:
            if self.crash is not None:
                raise self.crash from error
            if self.pending and self.host is not None:
                # The child waits for us: its own budget's end, or else the host's failing.
                status = "truncated" if self.host.budgets.wall_s else "infra_error"
                raise _Ended(status, "deadline: the wall time was used up") from error
            if loop.time() >= self.wall:
                raise _Ended("harness_error", "did not end with its wall time; killed") from error
            raise _Ended(
                "harness_error",
                f"sent nothing for {self.limits.silent_s} s (a processor did not return); killed",
            ) from error
        finally:
            self.talking = False
        assert self.child is not None
        ended = await self.zygote.end(self.child)
        status = "infra_error" if ended.lost else "harness_error"
        raise _Ended(status, f"the harness process ended before it was done: it {ended.describe()}")

    def deadline(self) -> float:
        """Loop time at which the child is killed, as things stand."""
        if self.crash is not None:
            return self.zygote.loop.time()
        if self.pending:
            return self.wall
        return min(self.wall, self.zygote.loop.time() + self.limits.silent_s)

    def ask(self, message: dict[str, Any]) -> None:
        """Begin to answer one request. Raises ProtocolError."""
        kind, id = message.get("type"), message.get("id")
        if kind not in ("model", "tool") or type(id) is not int:
            raise protocol.ProtocolError(f"unknown message {repr(message)[:80]}")
        self.calls += 1
        if self.calls > self.limits.calls:
            raise _Ended("harness_error", f"made more than {self.limits.calls} calls; killed")
        if len(self.pending) >= self.limits.calls_at_once:
            raise _Ended(
                "harness_error", f"made more than {self.limits.calls_at_once} calls at once; killed"
            )
        request: Any
        if kind == "model":
            request = protocol.load_model_request(message.get("request"))
        else:
            request = protocol.load_tool_request(message.get("request"))
        self.steps = max(self.steps, request.step + 1)
        task = asyncio.create_task(self.answer(kind, id, request))
        self.pending.add(task)
        task.add_done_callback(self.answered)
        self.timer.reschedule(self.deadline())

    def answered(self, task: asyncio.Task[None]) -> None:
        self.pending.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.crash = task.exception()
        if self.talking:
            self.timer.reschedule(self.deadline())

    async def answer(self, kind: str, id: int, request: Any) -> None:
        assert self.host is not None
        out: dict[str, Any]
        try:
            if kind == "model":
                out = {"reply": protocol.dump_model_reply(await self.host.model(request))}
            else:
                out = {"reply": protocol.dump_tool_reply(await self.host.tool(request))}
        except HostError as error:
            out = {"error": {"kind": error.kind, "message": str(error)}}
        self.send(protocol.encode({"id": id, **out}))

    def send(self, data: bytes) -> None:
        """Not awaited: a child that does not read is bounded by its calls, and by its silence."""
        assert self.writer is not None
        self.writer.write(data)

    def done(self, message: dict[str, Any]) -> RunResult:
        result = protocol.load_result(message.get("result"))
        harness = message.get("harness")
        if harness is not None:
            Trace("", "full").adopt(harness)
            self.harness = harness
        if result.status == "infra_error":
            # A real one is in host.failure, and wins in `run`.
            return RunResult(
                "harness_error",
                f"claimed an infrastructure error that did not happen: {result.reason}",
                result.steps,
                result.output,
            )
        return result

    async def finish(self) -> None:
        """End the child and all that still works for it."""
        for task in self.pending:
            task.cancel()
        if self.writer is not None:
            self.writer.close()
        if self.child is not None:
            await self.zygote.end(self.child)
