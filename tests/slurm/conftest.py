"""One throw-away Slurm for all tests here, and jobs that wait for time to pass, started at once."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
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


@pytest.fixture(scope="session")
def long_jobs(slurm: ThrowawaySlurm, runs: Path, scratch: Path) -> Mapping[str, JobUnderTest]:
    """Jobs that need a minute or more, side by side with all other tests."""
    jobs: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "time-limit": ({"steps": 35, "seconds": 1.0}, {"time": "0:01:00", "signal_lead_s": 20}),
        "long-phase": ({"steps": 1, "seconds": 600}, {"time": "0:01:00", "signal_lead_s": 20}),
        "stuck": ({"steps": 10, "dies_at": 2}, {"max_restarts": 2}),
    }
    return {
        name: submit_steps(slurm, runs / name, scratch, settings, cluster)
        for name, (settings, cluster) in jobs.items()
    }


@pytest.fixture
def steps(slurm: ThrowawaySlurm, long_jobs: object, tmp_path: Path, scratch: Path) -> Iterator[Any]:
    """Submit a job whose driver does numbered steps: `steps({"steps": 3}, nodes=2)`."""
    jobs: list[JobUnderTest] = []

    def submit(settings: Mapping[str, Any], runs: int = 1, **cluster: Any) -> JobUnderTest:
        directory = tmp_path / f"it is {len(jobs)}"
        jobs.append(submit_steps(slurm, directory, scratch, settings, cluster, runs))
        return jobs[-1]

    yield submit
    for job in jobs:
        slurm.ask("scancel", job.id)
        if sys.exc_info()[0] is not None:
            print(job.told())
