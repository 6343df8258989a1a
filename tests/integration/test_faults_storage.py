"""What the file system can do to a run: killed at a sync or a rename, refused, out of space.

The faults are real: strace kills the process as it enters a system call, or has the call fail.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import scripted_run

from benchmarks.kill_test import final_state
from coevo.cli import EXIT_STOPPED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]

WAIT_S = 120


@dataclass(frozen=True)
class Ended:
    """code: of the exit, negative for a signal. said: all it printed."""

    code: int
    said: str


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServerContext]:
    """Forks from a process that has imported everything once: that takes longer than the run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scripted_run"])
    with pytest.MonkeyPatch.context() as patch:
        # The server does not take the parent's sys.path before it imports.
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        yield context


def attempt(server: ForkServerContext, runs: Path, inject: str = "") -> Ended:
    """One process that works on the run, with this fault (strace's `inject=`)."""
    log = runs / "log"
    process = server.Process(target=_child, args=(runs, log, bool(inject)))
    process.start()
    pid = process.pid
    assert pid is not None
    tracer = None
    if inject:
        _until(lambda: "T" in _status(pid, "State"), "the child to wait")
        calls = inject.partition(":")[0]
        tracer = subprocess.Popen(
            ["strace", "-f", "-qq", "-o", str(runs / "strace"), "-e", f"trace={calls}",
             "-e", f"inject={inject}", "-p", str(pid)]
        )  # fmt: skip
        _until(lambda: _status(pid, "TracerPid") != "0", "strace to attach")
        os.kill(pid, signal.SIGCONT)
    process.join(WAIT_S)
    if tracer is not None:
        tracer.wait(WAIT_S)
    code = process.exitcode
    assert code is not None, log.read_text()[-3000:]
    return Ended(code, log.read_text())


def _child(runs: Path, log: Path, wait: bool) -> None:
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if wait:
        os.kill(os.getpid(), signal.SIGSTOP)
    sys.exit(scripted_run.main(runs))


def _status(pid: int, key: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{key}:"))


def _until(true: object, what: str) -> None:
    assert callable(true)
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, f"not within {WAIT_S} s: {what}"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def whole(server: ForkServerContext, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    runs = tmp_path_factory.mktemp("whole")
    ended = attempt(server, runs)
    assert ended.code == 0, ended.said
    return final_state(runs / "it")


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_run_killed_again_and_again_at_a_sync_or_a_rename_ends_as_if_it_never_was(
    call: str, server: ForkServerContext, whole: dict[str, object], tmp_path: Path
) -> None:
    killed = 0
    # Each attempt comes further than the one before: what is journaled is not done again.
    for at in (1, 2, 4, 6, 9, 13, 18, 25):
        ended = attempt(server, tmp_path, f"{call}:signal=KILL:when={at}")
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL, ended.said
        killed += 1
    assert killed >= 3
    ended = attempt(server, tmp_path)
    assert ended.code == 0, ended.said
    assert final_state(tmp_path / "it") == whole


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("fsync:error=ENOSPC:when=9+", "the disk is full; free some space"),
        ("fsync:error=EIO:when=20+", "the disk has an I/O error"),
        ("rename:error=EDQUOT:when=4+", "the quota is used up"),
        ("fsync:error=ESTALE:when=30+", "the shared file system lost a file"),
    ],
)
def test_a_disk_that_refuses_stops_the_run_with_75_and_what_is_wrong_and_nothing_is_lost(
    fault: str, said: str, server: ForkServerContext, whole: dict[str, object], tmp_path: Path
) -> None:
    ended = attempt(server, tmp_path, fault)
    assert ended.code == EXIT_STOPPED, ended.said
    assert said in ended.said
    assert "Traceback" not in ended.said
    ended = attempt(server, tmp_path)
    assert ended.code == 0, ended.said
    assert final_state(tmp_path / "it") == whole
