"""Real runs and real Ray under a real Slurm."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from job_under_test import JobUnderTest, submit_steps
from throwaway_slurm import ThrowawaySlurm

from coevo.cli import main
from coevo.runs import load_run

ROOT = Path(__file__).resolve().parents[2]
RAY: Sequence[str] = (sys.executable, "-m", "coevo.launcher", "node")
ENGINES_S = 400


@pytest.mark.timeout(900)
def test_a_run_submitted_signalled_and_requeued_goes_on_to_its_end(
    slurm: ThrowawaySlurm,
    runs: Path,
    scratch: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    settings = {"interface": "lo", "scratch": scratch, "nodes": 2, "cpus_per_task": 4, "mem": "2G"}
    cluster = [f"cluster.{key}={value}" for key, value in settings.items()]
    code = main(["submit", "configs/smoke.yaml", f"runs_dir={runs}", "rounds=1", *cluster])
    said = capsys.readouterr().out
    assert code == 0
    job_id = said.splitlines()[0].removeprefix("submitted job ").partition(":")[0]
    assert f"squeue -j {job_id}" in said
    job = JobUnderTest(slurm, job_id, [runs / "smoke"], runs / "jobs" / "smoke")

    job.wait(lambda: len(job.phases()) >= 1, "the first phase", ENGINES_S)
    job.signal("USR1")
    job.wait(lambda: job.state() in ("COMPLETED", "FAILED"), "the end of the run", ENGINES_S)
    assert job.state() == "COMPLETED", job.told()
    assert job.decisions() == ["requeue", "done"]
    keys = [phase["key"] for phase in job.phases()]
    assert len(keys) == len(set(keys))
    run = load_run(job.run)
    assert run.finished
    assert run.problems == ()
    with capsys.disabled():
        print(f"\nrequeue to resume, engines: {job.requeue_to_resume_s():.0f} s")


@pytest.mark.timeout(300)
def test_two_jobs_of_one_user_share_a_node_and_one_ends_without_the_other(
    slurm: ThrowawaySlurm, runs: Path, scratch: Path
) -> None:
    cluster = {"extra": ["--nodelist=n1"], "mem": "500M"}
    short, long = (
        submit_steps(
            slurm, runs / name, scratch, {"steps": count, "ray": True}, cluster, daemon=RAY
        )
        for name, count in (("short", 10), ("long", 60))
    )
    for job in (short, long):
        job.wait_for_phases(1)
    assert short.wait_for_end() == "COMPLETED"
    assert long.state() == "RUNNING"
    assert long.wait_for_end() == "COMPLETED"
    # The second job's Ray outlived the first's: its driver asked it at the end, and no daemon was lost.
    assert long.decisions() == short.decisions() == ["done"]
    addresses = {(job.run / "logs/latest/address").read_text() for job in (short, long)}
    assert len(addresses) == 2
    # `ray start` prints this some seconds after its head answers; the short job may end before.
    (log,) = (long.run / "logs" / "latest").glob("ray-*.log")
    assert "Ray runtime started" in log.read_text()
