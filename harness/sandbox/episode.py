"""The worker's side of one harness process, which runs one episode; nothing that it says is trusted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from harness.host import HostError
from harness.metered import MeteredHost
from harness.runloop import TASK_END_S, RunResult
from harness.sandbox import protocol
from harness.sandbox.limits import Limits
from harness.sandbox.lines import Lines, LineTooLong
from harness.sandbox.process import START_S, Child, ZygoteProcess
from harness.sandbox.prompts import PromptReader
from harness.trace import Trace, TraceError

GRACE_S = TASK_END_S + 5.0
"""Seconds past its wall budget after which a child that has not ended by itself is killed."""


class EpisodeEnded(Exception):
    """The episode is over, other than by the child's own word: a status of RunResult and why."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Episode:
    """`begin` forks the child, `load` gives it the bundle, `run` does what of this was not done and
    has it run; `finish` ends it.

    level: the isolation in force. harness: the child's harness trace, once it is done.
    """

    def __init__(self, zygote: ZygoteProcess, limits: Limits) -> None:
        self.zygote = zygote
        self.limits = limits
        self.level = zygote.plan.name
        self.harness: object = None
        self.child: Child | None = None
        self.clean = False  # it said that it is done, as it should
        self._lines = Lines(self._line, self._hung_up, protocol.MAX_LINE)
        loop = zygote.loop
        self._ready: asyncio.Future[dict[str, Any] | None] = loop.create_future()
        self._over: asyncio.Future[RunResult | None] = loop.create_future()
        self._host: MeteredHost | None = None
        self._prompts = PromptReader()
        self._pending: set[asyncio.Task[None]] = set()
        self._crashed: asyncio.Task[None] | None = None
        self._calls = 0
        self._steps = 0

    async def begin(self) -> None:
        """Fork the child and check what it reports of its confinement. Raises EpisodeEnded."""
        ours, theirs = socket.socketpair()
        try:
            self.child = await self.zygote.spawn(theirs, self.limits)
        except ConnectionError as error:
            raise EpisodeEnded("infra_error", f"no harness process: {error}") from error
        finally:
            theirs.close()
            if self.child is None:
                ours.close()
        await self._lines.attach(ours)
        ready: dict[str, Any] | None
        try:
            async with asyncio.timeout(START_S):
                ready = await self._ready
        except TimeoutError:
            ready = None
        if ready is None:
            ended = await self.zygote.end(self.child)
            raise EpisodeEnded(
                "infra_error", f"the harness process did not start: {ended.describe()}"
            )
        plan = self.zygote.plan
        if (plan.confinement.landlock and not ready["landlock"]) or (
            plan.confinement.seccomp and not ready["seccomp"]
        ):
            raise EpisodeEnded("infra_error", f"the harness process is not confined: {ready}")
        parts = ["bubblewrap"] if plan.name == "bubblewrap" else []
        parts += ["landlock"] if ready["landlock"] else []
        parts += ["seccomp"] if ready["seccomp"] else []
        self.level = "+".join(parts) or "unsafe_local"

    def load(self, bundle_line: bytes) -> None:
        """Have the child load the bundle of that line."""
        self._lines.send(bundle_line)

    @property
    def waiting(self) -> bool:
        """Whether the child lives and, as it should, has said nothing since it began."""
        return self.child is not None and not self.child.exited.done() and not self._over.done()

    async def run(
        self,
        host: MeteredHost,
        bundle_line: bytes,
        start: dict[str, Any],
        first_call: Callable[[], None],
    ) -> RunResult:
        """Run the episode to its end; all that the child can do is a status of the result.

        first_call: called when the child first asks for something. Raises what `host` raises
        beside HostError."""
        self._wall = self.zygote.loop.time() + (host.budgets.wall_s or self.limits.wall_s) + GRACE_S
        try:
            if self.child is None:
                await self.begin()
                self.load(bundle_line)
            self._host, self._first_call = host, first_call
            self._heard = self.zygote.loop.time()
            self._lines.send(protocol.encode(start))
            result = await self._result()
        except EpisodeEnded as end:
            result = RunResult(end.status, end.reason, self._steps, "")  # type: ignore[arg-type]
        failure = host.failure
        if failure is not None and failure.kind == "infra":
            return RunResult("infra_error", str(failure), result.steps, result.output)
        return result

    async def finish(self) -> None:
        """End the child and all that still works for it."""
        for task in self._pending:
            task.cancel()
        self._lines.close()
        if self.child is not None:
            await self.zygote.end(self.child)

    async def _result(self) -> RunResult:
        """What the child ends with. Raises EpisodeEnded where it is not to be trusted more."""
        try:
            self._watch()
            result = await self._over
        except (protocol.ProtocolError, TraceError, LineTooLong) as error:
            raise EpisodeEnded("harness_error", f"broke the protocol: {error}") from error
        finally:
            self._alarm.cancel()
        if self._crashed is not None:
            await self._crashed  # raises it
        if result is not None:
            self.clean = True
            return result
        assert self.child is not None
        ended = await self.zygote.end(self.child)
        status = "infra_error" if ended.lost else "harness_error"
        raise EpisodeEnded(
            status, f"the harness process ended before it was done: it {ended.describe()}"
        )

    def _watch(self) -> None:
        """End the episode where its time is up, or the child's to speak; else look again later.

        A timer that looks at the clock costs less than one that every message puts off."""
        now = self.zygote.loop.time()
        # While we answer a call, the child owes us nothing.
        heard = now if self._pending else self._heard
        due = min(self._wall, heard + self.limits.silent_s)
        if due > now:
            self._alarm = self.zygote.loop.call_at(due, self._watch)
        elif not self._over.done():
            self._over.set_exception(self._late(now))

    def _late(self, now: float) -> EpisodeEnded:
        if self._pending and self._host is not None:
            # The child waits for us: its own budget's end, or else the host's failing.
            status = "truncated" if self._host.budgets.wall_s else "infra_error"
            return EpisodeEnded(status, "deadline: the wall time was used up")
        if now >= self._wall:
            return EpisodeEnded("harness_error", "did not end with its wall time; killed")
        return EpisodeEnded(
            "harness_error",
            f"sent nothing for {self.limits.silent_s} s (a processor did not return); killed",
        )

    def _line(self, line: bytes) -> None:
        if not self._ready.done():
            # Nothing of the bundle has run yet: this line is the confined child's own.
            self._ready.set_result(protocol.decode(line))
            return
        if self._over.done():
            return
        if self._host is None:
            self._over.set_result(None)  # it speaks unasked: no episode gets it
            return
        try:
            message = protocol.decode(line)
            if message.get("type") == "done":
                self._over.set_result(self._done(message))
            else:
                self._ask(self._host, message)
        except (protocol.ProtocolError, TraceError, EpisodeEnded) as error:
            self._over.set_exception(error)

    def _hung_up(self, error: Exception | None) -> None:
        if not self._ready.done():
            self._ready.set_result(None)
        if self._over.done():
            return
        if error is None or self._host is None or isinstance(error, ConnectionError):
            self._over.set_result(None)
        else:
            self._over.set_exception(error)

    def _ask(self, host: MeteredHost, message: dict[str, Any]) -> None:
        """Begin to answer one request. Raises ProtocolError and EpisodeEnded."""
        kind, id = message.get("type"), message.get("id")
        if kind not in ("model", "tool") or type(id) is not int:
            raise protocol.ProtocolError(f"unknown message {repr(message)[:80]}")
        self._calls += 1
        if self._calls == 1:
            self._first_call()
        if self._calls > self.limits.calls:
            raise EpisodeEnded("harness_error", f"made more than {self.limits.calls} calls; killed")
        if len(self._pending) >= self.limits.calls_at_once:
            raise EpisodeEnded(
                "harness_error", f"made more than {self.limits.calls_at_once} calls at once; killed"
            )
        request: Any
        if kind == "model":
            request = self._prompts.load(message.get("request"))
        else:
            request = protocol.load_tool_request(message.get("request"))
        self._steps = max(self._steps, request.step + 1)
        self._pending.add(asyncio.create_task(self._answer(host, kind, id, request)))

    async def _answer(self, host: MeteredHost, kind: str, id: int, request: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        out: dict[str, Any]
        line = b""
        try:
            try:
                if kind == "model":
                    out = {"reply": protocol.dump_model_reply(await host.model(request))}
                else:
                    out = {"reply": protocol.dump_tool_reply(await host.tool(request))}
            except HostError as error:
                out = {"error": {"kind": error.kind, "message": str(error)}}
            line = protocol.encode({"id": id, **out})
        finally:
            self._pending.discard(task)
            self._heard = self.zygote.loop.time()
            if not line and not self._over.done():  # the host raised what is no HostError
                self._crashed = task
                self._over.set_result(None)
        # Not awaited: a child that does not read is bounded by its calls, and by its silence.
        self._lines.send(line)

    def _done(self, message: dict[str, Any]) -> RunResult:
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
