"""The Slurm job script of runs, slurm/settings.sh.j2 filled in, then slurm/job.sh."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from coevo.cluster import ClusterConfig
from coevo.errors import InputError

TEMPLATES = Path(__file__).resolve().parents[1] / "slurm"
LOST_PATIENCE_S = 60
"""How long the driver may take to notice that a node is lost before it is ended."""


@dataclass(frozen=True, slots=True)
class Job:
    """name: of the Slurm job and its log files. runs: absolute run directories, one array task each.

    python: interpreter that has coevo, on every node or in the container. directory: where the
    script, and Slurm's own output, lie. cwd: where relative paths of the configuration start.
    driver: command that gets `--address-file FILE --timeout S [--interface I] RUN/submitted.yaml`.
    daemon: command of a node's Ray; gets what coevo.launcher's `node` takes. Both default to it.
    """

    name: str
    runs: Sequence[Path]
    cluster: ClusterConfig
    python: str
    directory: Path
    cwd: Path
    object_store_bytes: int
    driver: Sequence[str] = ()
    daemon: Sequence[str] = ()

    @property
    def script(self) -> Path:
        return self.directory / "job.sh"

    @property
    def array(self) -> bool:
        return len(self.runs) > 1

    def output(self, job_id: str) -> Path:
        """Slurm's own output of all attempts; `*` stands for the task of an array."""
        return self.directory / f"{job_id}{'_*' if self.array else ''}.out"


def job_script(job: Job) -> str:
    """The text for sbatch. Raises InputError for a path that a script cannot carry."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["shell"] = lambda value: shlex.quote(str(value))
    environment.filters["sbatch"] = _sbatch
    launcher = (job.python, "-m", "coevo.launcher")
    settings = environment.get_template("settings.sh.j2").render(
        job=job,
        c=job.cluster,
        driver=job.driver or (*launcher, "drive"),
        daemon=job.daemon or (*launcher, "node"),
        path=Path(job.python).parent if "/" in job.python else None,
        lost_patience=LOST_PATIENCE_S,
    )
    # Not a template: bash's own ${#name} would be a comment to jinja.
    return f"{settings}\n{(TEMPLATES / 'job.sh').read_text(encoding='utf-8')}"


def _sbatch(path: object) -> str:
    """A path as an sbatch line takes it: in quotes, without the characters it would act on."""
    text = str(path)
    bad = sorted({c for c in text if c in "\"'\\%\n"})
    if bad:
        raise InputError(
            f"{text!r} holds {' '.join(map(repr, bad))}, which sbatch lines cannot carry; choose "
            "another directory (spaces are fine)"
        )
    return f'"{text}"'
