"""A run whose engine, disk, Ray node and Ray head fail in turn ends like one that was left alone."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.kill_test import final_state, journaled, started
from coevo.cli import EXIT_STOPPED
from coevo.events import attempts, events

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),  # six starts of the engines
    pytest.mark.skipif(os.geteuid() != 0, reason="a small file system needs root"),
]

WAIT_S = 1200
DISK = 2 << 30
"""Bytes: a run is not begun with less than one GiB free. None is taken before it is written."""
SPARE = 64 << 10
"""Bytes that the full disk has left: less than a checkpoint."""
CONFIG = ("configs/smoke.yaml", "rounds=1")


def resize(disk: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of its own, of DISK bytes."""
    directory = Path(tempfile.mkdtemp(prefix="disk"))
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(directory)], check=True)
    resize(directory, DISK)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
        directory.rmdir()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    root = tmp_path_factory.mktemp("whole")
    log = root / "log"
    with started("run", *CONFIG, f"runs_dir={root}", "name=it", log=log) as process:
        assert process.wait(WAIT_S) == 0, log.read_text()[-3000:]
    return final_state(root / "it")


class Disturbed:
    """One run, attempt after attempt, each ended by a fault."""

    def __init__(self, runs: Path, log: Path) -> None:
        self.runs, self.log = runs, log
        self.path = runs / "it"

    def attempt(self, ready: Callable[[], object], fault: Callable[[int], object]) -> int:
        """Go on; when `ready`, `fault(process id of the driver)`. The exit code."""
        command = ("run", *CONFIG, f"runs_dir={self.runs}", "name=it")
        with started(*command, log=self.log) as process:
            end = time.monotonic() + WAIT_S
            while not ready():
                assert process.poll() is None, self.said()
                assert time.monotonic() < end, self.said()
                time.sleep(0.05)
            fault(process.pid)
            return process.wait(WAIT_S)

    def begun(self, phase: str) -> bool:
        """Whether the attempt under way has begun the phase."""
        tries = sum(e.kind == "attempt_started" for e in events(self.path))
        return tries > self.ended and any(
            line["phase"] == phase and line["message"] == "begins" and line["time"] > self.since
            for line in self.lines()
        )

    @property
    def ended(self) -> int:
        return sum(e.kind == "attempt_ended" for e in events(self.path))

    @property
    def since(self) -> str:
        return max(e.when for e in events(self.path) if e.kind == "attempt_started")

    def lines(self) -> list[dict[str, str]]:
        file = self.path / "log.jsonl"
        text = file.read_text().rpartition("\n")[0] if file.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def said(self) -> str:
        return self.log.read_text()[-3000:]


def kill(name: str) -> Callable[[int], None]:
    """SIGKILL to the process below the driver that calls itself so."""

    def fault(driver: int) -> None:
        (found,) = [
            p for p in psutil.Process(driver).children(recursive=True)
            if name in " ".join(p.cmdline()[:1])
        ]  # fmt: skip
        found.kill()

    return fault


def test_engine_disk_node_and_head_fail_in_turn_and_the_run_ends_as_if_they_never_had(
    whole: dict[str, object], disk: Path, tmp_path: Path
) -> None:
    run = Disturbed(disk, tmp_path / "log")

    code = run.attempt(lambda: run.begun("measure"), kill("ray::VLLMActor"))
    assert code == EXIT_STOPPED, run.said()
    assert "its process died" in run.said()

    def fill(_: int) -> None:
        now = os.statvfs(disk)
        resize(disk, (now.f_blocks - now.f_bfree) * now.f_bsize + SPARE)

    code = run.attempt(lambda: run.begun("train"), fill)
    assert code == EXIT_STOPPED, run.said()
    assert "No space left" in run.said()
    resize(disk, DISK)
    assert "0/rollout" in journaled(run.path)

    code = run.attempt(lambda: run.begun("train"), kill("raylet"))
    assert code == EXIT_STOPPED, run.said()

    # Ray's own code ends the driver when the head is lost: what is neither 0, 2 nor 70 is resumed.
    code = run.attempt(lambda: run.begun("train"), kill("gcs_server"))
    assert code not in (0, 2, 70), run.said()

    with started("resume", str(run.path), log=run.log) as process:
        assert process.wait(WAIT_S) == 0, run.said()
    assert final_state(run.path) == whole
    assert [a.code for a in attempts(events(run.path))][:2] == [EXIT_STOPPED, EXIT_STOPPED]
    assert "Traceback" not in run.log.read_text()
