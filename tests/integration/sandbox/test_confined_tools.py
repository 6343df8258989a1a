"""Commands of the shell and Python tools, harmless and hostile, at each isolation level."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.sandbox import Limits
from harness.sandbox.containment import SandboxUnavailable, probe
from harness.tools.builtin import BUILT_IN, built_in
from harness.tools.confined import Confined
from harness.tools.workspace import Workspace

Run = Callable[..., str]


@pytest.fixture(params=["bubblewrap", "landlock"])
def confined(request: pytest.FixtureRequest, tmp_path: Path) -> Confined:
    machine = probe()
    if not (machine.seccomp and (machine.bubblewrap or machine.landlock)):
        pytest.skip(machine.describe())
    (tmp_path / "work").mkdir()
    return Confined(Workspace(tmp_path / "work"), request.param, wall_s=20.0)


@pytest.fixture
def run(confined: Confined) -> Run:
    tools = built_in(BUILT_IN, confined)

    def call(name: str, **given: object) -> str:
        try:
            return asyncio.run(tools.call(name, given)).content
        except SandboxUnavailable as error:
            pytest.skip(str(error))

    return call


def sh(run: Run, command: str) -> str:
    return run("shell", command=command)


def test_commands_work_in_the_directory_and_files_stay(run: Run, confined: Confined) -> None:
    assert sh(run, "echo one > a.txt; mkdir d; cat a.txt; exit 3") == (
        "one\n[ended with exit status 3]"
    )
    assert run("python", code="print(open('a.txt').read().strip() * 2)") == "oneone"
    assert run("search_files", pattern="^o.e$", regex=True) == "a.txt:1:one"
    assert run("search_files", pattern="^zz$", regex=True) == "nothing found"
    assert "grep" in run("search_files", pattern="(", regex=True)
    assert run("search_files", pattern="a", regex=True, path="../..").startswith("../..: outside")
    assert sh(run, "true") == "[no output]"
    assert sh(run, "echo oops >&2; none-such").startswith("oops\n/bin/sh: 1: none-such")
    assert confined.in_force.endswith("landlock+seccomp")


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.socket()",
        "import socket; socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
        "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "import os; os.setsid()",
        "import os; os.setpgid(0, 0)",
        "open('/etc/passwd').read()",
        "open('../secret').read()",
        "open('/tmp/../etc/shadow').read()",
        "import os; os.listdir(os.path.expanduser('~root'))",
        "open('/usr/escaped', 'w')",
        "import json; open(json.__file__, 'a')",
        "import os; os.chroot('.')",
        "import os; os.kill(1, 9) if os.getpid() > 60000 else open('/proc/1/environ').read(1)[9]",
    ],
)
def test_what_would_reach_out_is_refused(run: Run, confined: Confined, code: str) -> None:
    (confined.workspace.root.parent / "secret").write_text("secret")
    said = run("python", code=code)
    assert said.endswith("[ended with exit status 1]"), said
    kinds = ("PermissionError", "OSError", "FileNotFoundError", "IndexError")
    assert said.split("\n")[-2].startswith(kinds), said


def test_the_environment_holds_nothing_of_the_worker(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "secret-1")
    assert "secret-1" not in sh(run, "env; cat /proc/self/environ; cat /proc/$PPID/environ")


def test_a_command_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    for level in ("bubblewrap", "landlock"):
        confined = Confined(Workspace(tmp_path), level, wall_s=2.0)  # type: ignore[arg-type]
        mark = f"sleep 98{os.getpid() % 1000}"
        started = time.monotonic()
        try:
            done = asyncio.run(confined.run(["/bin/sh", "-c", f"{mark} & {mark} & {mark}"]))
        except SandboxUnavailable:
            continue
        assert done.late
        assert time.monotonic() - started < 60
        assert _soon_gone(mark)


def test_a_child_does_not_outlive_its_command(confined: Confined) -> None:
    mark = f"sleep 97{os.getpid() % 1000}"
    try:
        done = asyncio.run(
            confined.run(["/bin/sh", "-c", f"nohup {mark} >/dev/null 2>&1 & echo ok"])
        )
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    assert done.output == "ok\n"
    assert _soon_gone(mark)


def _soon_gone(command: str) -> bool:
    """Whether no process runs it any more; what was killed may take a moment to end."""
    deadline = time.monotonic() + 30
    while _running(command) and time.monotonic() < deadline:
        time.sleep(0.05)
    return _running(command) == 0


def _running(command: str) -> int:
    wanted = command.encode().replace(b" ", b"\0")
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += path.read_bytes().startswith(wanted)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return count


def test_a_flood_of_output_is_bounded_and_cut_in_the_middle(tmp_path: Path) -> None:
    confined = Confined(Workspace(tmp_path), "auto", limits=Limits(memory_mb=2048, file_mb=4))
    try:
        done = asyncio.run(confined.run(["/bin/sh", "-c", "echo begin; yes | head -c 1000000000"]))
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    assert done.output.startswith("begin\ny\n")
    assert "bytes cut]" in done.output
    assert len(done.output) < 100_000


def test_memory_and_files_are_limited(run: Run) -> None:
    assert "MemoryError" in run("python", code="x = bytearray(1 << 33)")
    big = "f = open('big', 'wb')\nfor _ in range(100): f.write(b'x' * (1 << 20))"
    assert "File too large" in run("python", code=big)


def test_bytes_that_are_no_text_are_replaced(run: Run) -> None:
    assert sh(run, r"printf '\377\376'") == "\ufffd\ufffd"


def test_without_isolation_it_is_refused_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.sandbox import containment

    monkeypatch.setattr(containment, "probe", lambda: containment.Probe(None, 0, False))
    with pytest.raises(SandboxUnavailable, match="unsafe_local"):
        asyncio.run(Confined(Workspace(tmp_path)).run(["/bin/true"]))
    unsafe = Confined(Workspace(tmp_path), "unsafe_local")
    assert asyncio.run(unsafe.run(["/bin/true"])).code == 0
    assert unsafe.in_force == "unsafe_local"
