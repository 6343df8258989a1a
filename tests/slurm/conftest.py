"""One throw-away Slurm for all tests here, and a fleet of small jobs in it, started at once."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from job_under_test import JobUnderTest, submit_steps
from throwaway_slurm import ThrowawaySlurm, installable

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.fspath).parent == HERE:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def slurm() -> Iterator[ThrowawaySlurm]:
    reason = installable()
    if reason is not None:
        pytest.skip(reason)
    directory = Path(tempfile.mkdtemp(prefix="slurm"))
    try:
        with ThrowawaySlurm(directory / "it") as slurm:
            yield slurm
    finally:
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """Of the nodes: short, as Ray's sockets need it."""
    directory = Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs with a space")


@dataclass(frozen=True)
class Case:
    """A job of the fleet. steps, cluster: settings; disturb: what happens to it in its third phase."""

    steps: Mapping[str, Any]
    cluster: Mapping[str, Any] = field(default_factory=dict)
    tasks: int = 1
    disturb: Callable[[JobUnderTest], object] | None = None


SHORT = {"time": "0:01:00", "signal_lead_s": 20}
FLEET = {
    "long-phase": Case({"steps": 1, "seconds": 600}, SHORT),
    "time-limit": Case({"steps": 35, "seconds": 1.0}, SHORT),
    "stuck": Case({"steps": 10, "dies_at": 2}, {"max_restarts": 2}),
    "bug": Case({"steps": 10, "bug_at": 1}),
    "signalled": Case({"steps": 20}, disturb=lambda job: job.signal("USR1")),
    "array": Case({"steps": 30}, tasks=2, disturb=lambda job: job.signal("USR1", task=0)),
    "cancelled": Case({"steps": 200}, disturb=lambda job: job.slurm.ask("scancel", job.id)),
    "preempted": Case(
        {"steps": 40}, {"partition": "spot"}, disturb=lambda job: job.preempt("high")
    ),
    "node-lost": Case(
        {"steps": 120}, {"partition": "frail", "nodes": 2},
        disturb=lambda job: job.slurm.kill_node("n4"),
    ),
    "daemon-lost": Case({"steps": 30}, disturb=lambda job: job.kill_daemon()),
}  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def fleet(slurm: ThrowawaySlurm, runs: Path, scratch: Path) -> Mapping[str, JobUnderTest]:
    """All jobs that mostly wait, side by side with each other and with the tests of the engines."""
    jobs = {
        name: submit_steps(slurm, runs / name, scratch, case.steps, case.cluster, case.tasks)
        for name, case in FLEET.items()
    }
    for name, case in FLEET.items():
        if case.disturb is not None:
            for run in range(case.tasks):
                jobs[name].wait_for_phases(2, run)
            case.disturb(jobs[name])
    return jobs
