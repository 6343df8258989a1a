"""A submitted job and what it left: attempts, phases, logs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from throwaway_slurm import WAIT_S, ThrowawaySlurm, until

from coevo import slurm as client
from coevo.cluster import ClusterConfig
from coevo.jobscript import Job, job_script

DRIVER = (sys.executable, str(Path(__file__).with_name("steps_driver.py")))
NO_RAY = ("/bin/bash", "-c", "exec sleep 1000")
"""Stands for the daemons where a test is about the job and not about Ray."""
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}


@dataclass(frozen=True)
class JobUnderTest:
    """id: of the job or array. runs: directories, in the order of the array's tasks."""

    slurm: ThrowawaySlurm
    id: str
    runs: Sequence[Path]
    directory: Path

    @property
    def run(self) -> Path:
        return self.runs[0]

    def state(self, task: int | None = None) -> str:
        name = self.id if task is None else f"{self.id}_{task}"
        return self.slurm.ask("squeue", "-h", "-t", "all", "-j", name, "-o", "%T")

    def signal(self, name: str, task: int | None = None) -> None:
        """To the batch script only, as Slurm sends it before the limit."""
        target = self.id if task is None else f"{self.id}_{task}"
        self.slurm.ask("scancel", f"--signal={name}", "--batch", target)

    def preempt(self, partition: str) -> None:
        """A job of a higher partition takes the node for a second."""
        wrap = ["--exclusive", "-o", "/dev/null", "--wrap", "sleep 1"]
        self.slurm.ask("sbatch", "-p", partition, *wrap)

    def kill_daemon(self) -> None:
        """The step of the head, by SIGKILL."""
        steps = self.slurm.ask("squeue", "-h", "-s", "-j", self.id, "-o", "%i").split()
        (daemon,) = [step for step in steps if not step.endswith((".batch", ".extern"))]
        self.slurm.ask("scancel", "--signal=KILL", daemon)

    def events(self, kind: str, run: int = 0) -> list[dict[str, Any]]:
        file = self.runs[run] / "attempts.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [e for e in map(json.loads, lines) if e["event"] == kind]

    def decisions(self, run: int = 0) -> list[str]:
        return [event["decision"] for event in self.events("end", run)]

    def phases(self, run: int = 0) -> list[dict[str, Any]]:
        file = self.runs[run] / "journal.jsonl"
        text = file.read_text() if file.exists() else ""
        return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]

    def wait_for_phases(self, count: int, run: int = 0) -> None:
        self.wait(lambda: len(self.phases(run)) >= count, f"{count} phases")

    def wait_for_end(self, task: int | None = None) -> str:
        self.wait(lambda: self.state(task) in ENDED, f"the end of job {self.id}")
        return self.state(task)

    def wait(self, true: Any, what: str, seconds: float = WAIT_S) -> None:
        try:
            until(true, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None

    def requeue_to_resume_s(self) -> float:
        """Seconds between the end of the first attempt and the start of the second."""
        return float(self.events("start")[1]["time"] - self.events("end")[0]["time"])

    def told(self) -> str:
        """Slurm's output, and the end of every log."""
        files = [*self.directory.glob("*.out")]
        for run in self.runs:
            files += [run / "attempts.jsonl", *run.glob("logs/*/*.log")]
        why = self.slurm.ask("squeue", "-h", "-t", "all", "-j", self.id, "-o", "%T %r")
        parts = [f"job {self.id}: {why}", self.slurm.ask("sinfo", "-N", "-l")]
        parts += [f"== {f} ==\n{f.read_text()[-3000:]}" for f in files if f.exists()]
        return "\n".join(parts)


def submit_steps(
    slurm: ThrowawaySlurm,
    directory: Path,
    scratch: Path,
    settings: Mapping[str, Any],
    cluster: Mapping[str, Any],
    runs: int = 1,
    daemon: Sequence[str] = NO_RAY,
) -> JobUnderTest:
    """A job of `runs` array tasks, each with the driver of steps_driver.py and its settings."""
    job = steps_job(directory, scratch, settings, cluster, runs, daemon)
    return JobUnderTest(slurm, client.submit(job.script), job.runs, job.directory)


def steps_job(
    directory: Path,
    scratch: Path,
    settings: Mapping[str, Any],
    cluster: Mapping[str, Any],
    runs: int = 1,
    daemon: Sequence[str] = NO_RAY,
) -> Job:
    """The job with its script written."""
    job = Job(
        name=directory.name.replace(" ", "-"),
        runs=[directory / f"run {i}" for i in range(runs)],
        cluster=ClusterConfig(
            **{"interface": "lo", "scratch": str(scratch), "cpus_per_task": 1, "mem": "100M", **cluster}
        ),
        python=sys.executable,
        directory=directory / "jobs",
        cwd=Path.cwd(),
        object_store_bytes=80 << 20,
        driver=DRIVER,
        daemon=daemon,
    )  # fmt: skip
    for run in job.runs:
        run.mkdir(parents=True)
        text = yaml.safe_dump({"seconds": 0.3, **settings})
        (run / "submitted.yaml").write_text(text)
    job.directory.mkdir()
    job.script.write_text(job_script(job))
    return job
