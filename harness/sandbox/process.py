"""The zygote as the worker sees it: started, asked for children, watched, killed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import tempfile
from dataclasses import dataclass, field

from harness.sandbox.containment import Plan, SandboxUnavailable, environment
from harness.sandbox.limits import Limits
from harness.sandbox.zygote import CONTROL_BYTES

START_S = 60.0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child ended. lost: why the zygote itself could not keep it; else empty."""

    code: int = 0
    signal: int = 0
    lost: str = ""

    def describe(self) -> str:
        if self.lost:
            return self.lost
        if self.signal == signal.SIGXCPU:
            return "used up its CPU time"
        if self.signal:
            return f"was ended by {signal.Signals(self.signal).name}"
        return f"exited with status {self.code}"


@dataclass(slots=True)
class Child:
    """One forked harness process, known by number; its process id stays with the zygote."""

    id: int
    slot: int
    exited: asyncio.Future[Exit] = field(repr=False)


class ZygoteProcess:
    """A running zygote, tied to the event loop that started it."""

    def __init__(
        self, plan: Plan, process: subprocess.Popen[bytes], control: socket.socket, slots: int
    ) -> None:
        self.plan = plan
        self.loop = asyncio.get_running_loop()
        self.lost = ""
        self._process = process
        self._control = control
        self._free = list(range(slots))
        self._children: dict[int, Child] = {}
        self._next = 0
        self.loop.add_reader(control.fileno(), self._events)

    @classmethod
    async def start(cls, plan: Plan, slots: int) -> ZygoteProcess:
        """Start a zygote as `plan` says. Raises SandboxUnavailable with what it wrote."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    (*plan.command, str(theirs.fileno()), plan.confinement.to_json()),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    pass_fds=(theirs.fileno(),),
                    env=environment(),
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise SandboxUnavailable(
                    f"{plan.name}: {plan.command[0]} cannot be started: {error}"
                ) from error
            finally:
                theirs.close()
            ours.setblocking(False)
            hello = b""
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                async with asyncio.timeout(START_S):
                    hello = await asyncio.get_running_loop().sock_recv(ours, CONTROL_BYTES)
            if hello:
                return cls(plan, process, ours, slots)
            ours.close()
            process.kill()
            process.wait()
            errors.seek(0)
            said = errors.read()[-2000:].decode("utf-8", "replace").strip()
            raise SandboxUnavailable(
                f"{plan.name}: the zygote did not start: {said or 'no message'}"
            )

    async def spawn(self, sock: socket.socket, limits: Limits) -> Child:
        """Fork a child that owns the other end of `sock`'s pair; the caller closes `sock`.

        Raises ConnectionError where the zygote is gone."""
        self._next += 1
        child = Child(self._next, self._free.pop(), self.loop.create_future())
        self._children[child.id] = child
        order = {"op": "spawn", "id": child.id, "slot": child.slot, "limits": limits.to_json()}
        try:
            await self._order(order, [sock.fileno()])
        except BaseException:
            self._children.pop(child.id, None)
            self._free.append(child.slot)
            raise
        return child

    async def end(self, child: Child) -> Exit:
        """Kill the child if it still runs, and wait until it is gone."""
        if not child.exited.done():
            # A zygote that is gone took its children with it; `_lose` says so.
            with contextlib.suppress(ConnectionError):
                await self._order({"op": "kill", "id": child.id}, [])
        return await asyncio.shield(child.exited)

    async def _order(self, order: dict[str, object], fds: list[int]) -> None:
        data = json.dumps(order).encode()
        while not self.lost:
            try:
                socket.send_fds(self._control, [data], fds)
            except BlockingIOError:  # more orders than the zygote has read yet
                await asyncio.sleep(0.002)
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:  # likewise, descriptors on their way
                    raise ConnectionResetError(f"the sandbox's zygote is gone: {error}") from error
                await asyncio.sleep(0.002)
            else:
                return
        raise ConnectionResetError(self.lost)

    def _events(self) -> None:
        while True:
            try:
                data = self._control.recv(CONTROL_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                self._lose("the sandbox's zygote process died")
                return
            event = json.loads(data)
            child = self._children.pop(event["id"], None)
            if child is not None:
                self._free.append(child.slot)
                child.exited.set_result(Exit(event["code"], event["signal"], event.get("lost", "")))

    def _lose(self, why: str) -> None:
        if self.lost:
            return
        self.lost = why
        if not self.loop.is_closed():
            self.loop.remove_reader(self._control.fileno())
        self._control.close()
        # All that it started is of its session; inside namespaces the kernel ends them with it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for child in self._children.values():
            if not child.exited.done() and not self.loop.is_closed():
                child.exited.set_result(Exit(lost=why))
        self._children.clear()

    def close(self) -> None:
        """End the zygote and all its children."""
        self._lose("the sandbox was closed")

    @property
    def pid(self) -> int:
        """Process id of the zygote's outermost process, as this machine counts."""
        return self._process.pid
