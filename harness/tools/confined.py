"""Runs commands of the tools in the task's directory: isolated, limited, killed with all they started.

Probe order as for the harness process: bubblewrap with landlock and seccomp inside; else landlock
and seccomp; else refuse, unless `unsafe_local` was asked for.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.sandbox import containment
from harness.sandbox.containment import Level, Probe, SandboxUnavailable
from harness.sandbox.limits import Limits
from harness.shorten import head_and_tail
from harness.tools import offline
from harness.tools.workspace import Workspace

WORK = "/task"
"""Where bubblewrap shows the task's directory."""

MAX_OUTPUT = 60_000
"""Characters of a command's output that are kept, half from each end."""

LIMITS = Limits(memory_mb=2048, cpu_s=60, file_mb=64, open_files=256)
_SHELL = ("/bin", "/sbin", "/etc/alternatives")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_UNSHARE = (("--unshare-all",), ("--unshare-user-try", "--unshare-pid", "--unshare-ipc"))


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended. code: exit status, negative for a signal. late: it ran out of time."""

    code: int
    output: str
    late: bool = False

    def describe(self) -> str:
        if self.late:
            return "the time limit; it was killed"
        if self.code < 0:
            return f"signal {signal.Signals(-self.code).name}"
        return f"exit status {self.code}"

    def report(self) -> str:
        """What the model reads: the output, and how it ended where that is not 0."""
        text = self.output.rstrip("\n")
        if self.code or self.late:
            text += f"\n[ended with {self.describe()}]"
        return text.strip("\n") or "[no output]"


@dataclass(frozen=True, slots=True)
class _Way:
    name: str
    prefix: tuple[str, ...]
    landlock: bool
    seccomp: bool
    cwd: str


class Confined:
    """Commands for one workspace at an isolation level.

    level: auto (the strongest that works), bubblewrap, landlock, unsafe_local. wall_s: seconds of
    one command. limits: of each of its processes. processes: at most, in bubblewrap. `in_force`
    names the isolation once a command ran.
    """

    def __init__(
        self,
        workspace: Workspace,
        level: Level = "auto",
        *,
        wall_s: float = 60.0,
        limits: Limits = LIMITS,
        processes: int = 64,
    ) -> None:
        self.workspace = workspace
        self.level = level
        self.wall_s = wall_s
        self.limits = limits
        self.processes = processes
        self.in_force = ""
        self._way: _Way | None = None

    async def run(self, argv: Sequence[str], stdin: str = "") -> Done:
        """Run one command and wait for its end. Raises SandboxUnavailable."""
        if self._way is None:
            self._way = await self._find()
            self.in_force = self._way.name
        return await self._start(self._way, argv, stdin)

    async def _find(self) -> _Way:
        """The strongest way that can run `true`."""
        machine = containment.probe()
        said = []
        for way in self._ways(machine):
            done = await self._start(way, ["/bin/true"], "")
            if done.code == 0:
                return way
            said.append(f"{way.name}: {done.output.strip()[-500:] or done.describe()}")
        raise SandboxUnavailable(
            f"tools cannot run commands at level {self.level!r} here ({machine.describe()}): "
            f"{'; '.join(said) or 'no way to try'}. Install bubblewrap, use a kernel with landlock, "
            "or accept commands without isolation with `unsafe_local`"
        )

    def _ways(self, machine: Probe) -> list[_Way]:
        root = str(self.workspace.root)
        if self.level == "unsafe_local":
            return [_Way("unsafe_local", (), False, False, root)]
        out = []
        if self.level in ("auto", "bubblewrap") and machine.bubblewrap and machine.seccomp:
            name = "bubblewrap" + ("+landlock" if machine.landlock else "") + "+seccomp"
            for unshare in _UNSHARE:
                prefix = self._bubblewrap(machine.bubblewrap, unshare)
                out.append(_Way(name, prefix, machine.landlock > 0, True, WORK))
        if self.level in ("auto", "landlock") and machine.landlock and machine.seccomp:
            out.append(_Way("landlock+seccomp", (), True, True, root))
        return out

    def _bubblewrap(self, bwrap: str, unshare: tuple[str, ...]) -> tuple[str, ...]:
        args = [bwrap, *unshare, "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        paths = [*containment.readable_paths(), *filter(os.path.exists, _SHELL)]
        for path in sorted(dict.fromkeys(paths), key=lambda p: p.count("/")):
            if os.path.islink(path):
                args += ["--symlink", os.readlink(path), path]
            else:
                args += ["--ro-bind", path, path]
        args += ["--dev", "/dev", "--proc", "/proc"]
        args += ["--size", str(64 << 20), "--tmpfs", "/tmp"]
        args += ["--bind", str(self.workspace.root), WORK, "--remount-ro", "/"]
        return (*args, "--chdir", WORK, "--")

    def _order(self, way: _Way, argv: Sequence[str]) -> str:
        boxed = way.cwd == WORK
        # Address space is counted whole here: nothing of the interpreter stays mapped after exec.
        return json.dumps(
            {
                "argv": list(argv),
                "cwd": way.cwd,
                "env": {
                    **containment.environment(),
                    "HOME": way.cwd,
                    "TMPDIR": "/tmp" if boxed else way.cwd,
                },
                "limits": asdict(self.limits),
                "processes": self.processes if boxed else 0,
                "landlock": way.landlock,
                "execute": [*containment.readable_paths(), *_SHELL, *(["/proc"] if boxed else [])],
                "write": [way.cwd, *_DEVICES, *(["/tmp"] if boxed else [])],
                "seccomp": base64.b64encode(offline.program()).decode() if way.seccomp else "",
            }
        )

    async def _start(self, way: _Way, argv: Sequence[str], stdin: str) -> Done:
        launch = str(Path(__file__).with_name("launch.py"))
        command = (*way.prefix, sys.executable, "-I", "-S", "-B", launch, self._order(way, argv))
        late = False
        # Files, not pipes: what a command writes is bounded by its file limit, and a process that
        # it left behind cannot keep us waiting.
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output:
            given.write(stdin.encode("utf-8", "replace"))
            given.seek(0)
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=given,
                stdout=output,
                stderr=output,
                env={"PATH": "/usr/bin:/bin"},
                cwd="/",
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(self.wall_s):
                    await process.wait()
            except TimeoutError:
                late = True
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            text = _read(output)
        done = Done(process.returncode or 0, text, late)
        # A shell between us and the command reports a signal as 128 and more.
        return done if done.code <= 128 or done.code > 192 else replace(done, code=128 - done.code)


def _read(stream: object) -> str:
    """Both ends of what was written."""
    handle = stream.fileno()  # type: ignore[attr-defined]
    size = os.fstat(handle).st_size
    if size <= 4 * MAX_OUTPUT:
        return head_and_tail(os.pread(handle, size, 0).decode("utf-8", "replace"), MAX_OUTPUT)
    half = MAX_OUTPUT // 2
    head = os.pread(handle, half, 0).decode("utf-8", "replace")
    tail = os.pread(handle, half, size - half).decode("utf-8", "replace")
    return f"{head} … [{size - 2 * half} bytes cut] … {tail}"
