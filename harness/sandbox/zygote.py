"""The trusted parent of the harness processes: everything is imported once, an episode is a fork.

It runs no bundle code. The worker asks over a socket: {"op": "spawn", "id", "slot", "limits"} with
the episode's socket as ancillary data, or {"op": "kill", "id"}; it answers {"event": "hello"} and,
for every child that ended, {"event": "exit", "id", "code", "signal"}.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any

from harness.sandbox import landlock, seccomp
from harness.sandbox.limits import Limits, address_space, apply_rlimits

CONTROL_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_USUAL = [
    "bisect",
    "collections",
    "copy",
    "datetime",
    "difflib",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "queue",
    "re",
    "statistics",
    "string",
    "textwrap",
    "time",
    "typing",
    "unicodedata",
]


@dataclass(frozen=True, slots=True)
class Confinement:
    """How a child is confined after its fork. read: paths it may read. scratch: a writable
    directory for each child at a time (none: nothing is writable)."""

    landlock: bool
    seccomp: bool
    read: tuple[str, ...] = ()
    scratch: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(
            {
                "landlock": self.landlock,
                "seccomp": self.seccomp,
                "read": self.read,
                "scratch": self.scratch,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Confinement:
        raw = json.loads(text)
        return cls(raw["landlock"], raw["seccomp"], tuple(raw["read"]), tuple(raw["scratch"]))


def main(control_fd: int, confinement: str) -> None:
    """Serve until the worker closes the control socket; then end with all children."""
    confine = Confinement.from_json(confinement)
    control = socket.socket(fileno=control_fd)
    _die_with_parent()
    _prepare()
    gc.collect()
    gc.freeze()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    control.send(json.dumps({"event": "hello"}).encode())
    _Zygote(control, confine).serve()


class _Zygote:
    def __init__(self, control: socket.socket, confinement: Confinement) -> None:
        self.control = control
        self.confinement = confinement
        self.children: dict[int, tuple[int, int]] = {}  # pid -> (episode id, slot)
        self.mapped = address_space()
        self.wake, self.alarm = socket.socketpair()
        self.wake.setblocking(False)
        self.alarm.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.alarm.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self.wake.fileno():
                    with contextlib.suppress(BlockingIOError):
                        self.wake.recv(4096)
                    self.reap()
                elif not self.order():
                    for pid in self.children:
                        _kill(pid)
                    return

    def order(self) -> bool:
        """Carry out one order of the worker; False where it hung up."""
        data, fds, _, _ = socket.recv_fds(self.control, CONTROL_BYTES, 1)
        if not data:
            return False
        order = json.loads(data)
        if order["op"] == "kill":
            for pid, (id, _) in self.children.items():
                if id == order["id"]:
                    _kill(pid)
            return True
        limits = Limits(**order["limits"])
        try:
            pid = os.fork()
        except OSError as error:
            self.tell(
                {"event": "exit", "id": order["id"], "code": 1, "signal": 0, "lost": str(error)}
            )
            os.close(fds[0])
            return True
        if pid == 0:
            self.child(fds[0], order["slot"], limits)
        os.close(fds[0])
        self.children[pid] = (order["id"], order["slot"])
        return True

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid not in self.children:
                continue
            id, slot = self.children.pop(pid)
            _kill(pid)  # what is left of its process group (unsafe_local only)
            self.clean(slot)
            code = os.waitstatus_to_exitcode(status)
            self.tell({"event": "exit", "id": id, "code": max(code, 0), "signal": max(-code, 0)})

    def clean(self, slot: int) -> None:
        """Empty the scratch directory for the next episode."""
        if self.confinement.scratch:
            with os.scandir(self.confinement.scratch[slot]) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path, ignore_errors=True)
                    else:
                        os.unlink(entry.path)

    def tell(self, event: dict[str, Any]) -> None:
        # A worker that is gone is noticed at the control socket.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.control.send(json.dumps(event).encode())

    def child(self, fd: int, slot: int, limits: Limits) -> None:
        """In the forked child: confine it, then run the episode; never returns."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            _die_with_parent()
            # Its own socket as 3, /dev/null before it, nothing else of its parent.
            os.dup2(fd, 3)
            os.closerange(4, os.sysconf("SC_OPEN_MAX"))
            scratch = self.confinement.scratch[slot] if self.confinement.scratch else None
            os.chdir(scratch or "/")
            if scratch:
                os.environ["TMPDIR"] = scratch
            from harness.sandbox import child

            apply_rlimits(limits, self.mapped)
            abi = 0
            if self.confinement.landlock:
                abi = landlock.confine(self.confinement.read, (scratch,) if scratch else ())
            if self.confinement.seccomp:
                seccomp.confine()
            gc.enable()
            child.serve(3, landlock_abi=abi, seccomp=self.confinement.seccomp)
            code = 0
        finally:
            os._exit(code)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _prepare() -> None:
    """Import what an episode needs and run its machinery once, so that a fork finds it warm."""
    import harness.processors
    import harness.sandbox.child

    for name in _USUAL:
        importlib.import_module(name)
    package = harness.processors
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    harness.sandbox.child.rehearse()
    if seccomp.available():
        seccomp.program()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
