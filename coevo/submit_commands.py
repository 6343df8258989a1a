"""`coevo submit`: check, render, write, submit, and say how to watch."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from coevo import slurm
from coevo.arms import arm_configs, learning_tokens, matched_run, parse_arms, parse_seeds
from coevo.cluster import ClusterConfig
from coevo.commands import versions
from coevo.config import ConfigError, RunConfig, dump_config, load_config
from coevo.errors import InputError
from coevo.jobscript import Job, job_script
from coevo.placement import misplaced
from coevo.preflight import preflight
from coevo.rundir import RunDir
from harness.atomic import write_atomic

DEFAULT_SEEDS, DEFAULT_ARMS = "3", "frozen,harness,coevolve"
REMOTE_IMAGE = ("docker://", "library://", "oras://", "http://", "https://", "shub://")


def run(arguments: argparse.Namespace) -> None:
    """Handler of the command. Raises InputError, ConfigError or RunDirError before it submits."""
    configs = _configs(arguments)
    cluster = configs[0].cluster
    if cluster is None:
        raise InputError(
            f"{arguments.config} has no `cluster` section; add one, for example "
            "`cluster: {partition: gpu, nodes: 1, gpus_per_node: 4, time: '4:00:00'}`, or give "
            "cluster.partition=NAME"
        )
    if arguments.local:
        cluster = cluster.model_copy(update={"nodes": 1})
        configs = [c.model_copy(update={"cluster": cluster}) for c in configs]
    job = _job(arguments.config, arguments.overrides, configs, cluster)
    problems = [
        *_unusable(job, arguments.local),
        *dict.fromkeys(text for config in configs for text in misplaced(config, cluster)),
    ]
    if not problems and not arguments.local:
        problems += _placed(cluster, arguments.dry_run)
    if problems:
        raise ConfigError(arguments.config, problems)
    for config in configs:
        preflight(config)
    script = job_script(job)
    if arguments.dry_run:
        print(script, end="")
        return
    for path, config in zip(job.runs, configs, strict=True):
        created = RunDir.create(path, config, versions(), arguments.accept_config)
        write_atomic(created.path / "submitted.yaml", dump_config(config).encode())
    # Slurm fails a job whose output directory is missing, and leaves no log to say so.
    job.directory.mkdir(parents=True, exist_ok=True)
    write_atomic(job.script, script.encode())
    if arguments.local:
        _here(job)
    else:
        _announce(job, slurm.submit(job.script))


def _configs(arguments: argparse.Namespace) -> list[RunConfig]:
    """One a task of the array, named like the runs of `coevo experiment`; else the one."""
    base = load_config(arguments.config, arguments.overrides)
    if arguments.array is None:
        for option in ("seeds", "arms"):
            if getattr(arguments, option):
                raise InputError(f"--{option} needs --array; give --array {option}")
        return [base]
    seeds = arguments.seeds or (DEFAULT_SEEDS if arguments.array == "seeds" else f"{base.seed},")
    arms = arguments.arms or (DEFAULT_ARMS if arguments.array == "arms" else base.mode)
    configs = arm_configs(
        arguments.config, arguments.overrides, parse_arms(arms), parse_seeds(seeds)
    )
    for config in configs:
        if config.mode == "best_of_n" and (match := matched_run(config)) is not None:
            learning_tokens(match)  # tasks of an array wait for no other: it must be finished
    return configs


def _job(
    config: str, overrides: Sequence[str], configs: Sequence[RunConfig], cluster: ClusterConfig
) -> Job:
    first = configs[0]
    name = first.name if len(configs) == 1 else load_config(config, overrides).name
    runs_dir = Path(first.runs_dir).absolute()
    if cluster.venv is not None:
        python = str(Path(cluster.venv).expanduser().absolute() / "bin" / "python")
    else:
        python = sys.executable if cluster.image is None else "python"
    return Job(
        name=name,
        runs=[runs_dir / c.name for c in configs],
        cluster=cluster,
        python=python,
        directory=runs_dir / "jobs" / name,
        cwd=Path.cwd(),
        object_store_bytes=first.resources.object_store_bytes,
    )


def _unusable(job: Job, local: bool) -> list[str]:
    """What of the paths can be known here to fail on the nodes."""
    cluster, problems = job.cluster, []
    if not _writable(job.directory):
        problems.append(f"runs_dir: {job.directory} cannot be made or written; choose another")
    if cluster.venv is not None and cluster.image is None and not Path(job.python).is_file():
        problems.append(f"cluster.venv: there is no {job.python}; expected a virtual environment")
    if cluster.image is not None:
        kind, image = cluster.image
        looks_like_file = kind == "apptainer" or image.endswith(".sqsh") or image[0] in "./"
        if looks_like_file and not image.startswith(REMOTE_IMAGE) and not Path(image).exists():
            problems.append(f"cluster.container: there is no image {image}")
        if local and kind == "pyxis":
            problems.append("cluster.container: pyxis needs srun; --local takes none or apptainer")
        if local and kind == "apptainer" and shutil.which("apptainer") is None:
            problems.append("cluster.container: apptainer is not on PATH here")
    problems += [
        f"cluster.mounts: there is no {m} here" for m in cluster.mounts if not Path(m).exists()
    ]
    scratch = Path(cluster.scratch)
    # A node's own disk need not exist here: then each node checks it as the job starts.
    if (scratch.exists() or local) and not (scratch.is_dir() and _may_write(scratch)):
        problems.append(f"cluster.scratch: {scratch} is not a directory that can be written")
    return problems


def _placed(cluster: ClusterConfig, dry_run: bool) -> list[str]:
    """What Slurm has against the job. A dry run works where there is no Slurm, and says so."""
    try:
        return slurm.unplaceable(cluster, slurm.nodes())
    except InputError as error:
        if not dry_run:
            raise
        print(f"not checked (partition, size of the nodes): {error}", file=sys.stderr)
        return []


def _writable(path: Path) -> bool:
    """Whether `path` is, or can be made, a directory that can be written."""
    existing = next(p for p in (path, *path.parents) if p.exists())
    return existing.is_dir() and _may_write(existing)


def _may_write(directory: Path) -> bool:
    """Tried, not asked: root and network file systems make os.access say yes too often."""
    try:
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        return False
    return True


def _announce(job: Job, job_id: str) -> None:
    shown = [shlex.quote(str(path)) for path in job.runs]
    print(f"submitted job {job_id}: {', '.join(path.name for path in job.runs)}")
    print("watch it:")
    print(f"  squeue -j {job_id}")
    print(f"  tail -F {shown[0]}/logs/latest/driver.log")
    for path in shown:
        print(f"  coevo status {path}")
    print(f"  coevo watch {shown[0]}")
    print(
        f"let it stop, requeue and go on: scancel --signal=USR1 --batch {job_id}; end it: scancel {job_id}"
    )
    print(f"Slurm's own output: {job.output(job_id)}")


def _here(job: Job) -> None:
    """One run after another, each by the job's script. Ends with the first code that is not 0."""
    for index, path in enumerate(job.runs):
        print(
            f"running {job.script} --local {index}; log: {path}/logs/latest/driver.log", flush=True
        )
        process = subprocess.Popen(["bash", str(job.script), "--local", str(index)])
        while process.poll() is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                continue  # the script has it too, and stops the run between two phases
        if process.returncode:
            raise SystemExit(process.returncode)
