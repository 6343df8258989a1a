"""What this Slurm cluster has and says: partitions, nodes, the answer to a submission."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coevo.cluster import ClusterConfig
from coevo.errors import InputError
from harness.component import nearest

TOOLS = ("sinfo", "sbatch", "squeue", "scontrol", "srun")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)")


@dataclass(frozen=True, slots=True)
class Node:
    """A node as one partition offers it. mem_mb: MiB. limit_s: of time; None: unlimited."""

    name: str
    partition: str
    default: bool
    cpus: int
    mem_mb: int
    gpus: int
    limit_s: int | None


def nodes() -> list[Node]:
    """Every node of every partition that this user sees. Raises InputError without an answer."""
    said = _ask(["sinfo", "-h", "-N", "-o", "%N|%P|%c|%m|%G|%l"])
    return [_node(line) for line in said.splitlines() if line.strip()]


def submit(script: Path) -> str:
    """The id of the new job. Raises InputError with Slurm's own words where it refuses."""
    said = _ask(["sbatch", "--parsable", str(script)])
    return said.strip().split(";")[0]


def _ask(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise InputError(
            f"{command[0]} is not on PATH: submit from a login node of the cluster, or use "
            "--local to run here, or --dry-run to see the script"
        ) from error
    if done.returncode:
        raise InputError(f"{command[0]} refused: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _node(line: str) -> Node:
    name, partition, cpus, mem, gres, limit = line.strip().split("|")
    return Node(
        name=name,
        partition=partition.removesuffix("*"),
        default=partition.endswith("*"),
        cpus=int(cpus),
        mem_mb=int(mem),
        gpus=sum(int(n) for n in _GPUS.findall(gres)),
        limit_s=_seconds(limit),
    )


def _seconds(limit: str) -> int | None:
    """Of sinfo's [D-]H:MM:SS, M:SS or 'infinite'."""
    if not limit[0].isdigit():
        return None
    days, _, clock = limit.rpartition("-")
    total = 0
    for part in clock.split(":"):
        total = total * 60 + int(part)
    return int(days or 0) * 86400 + total


def unplaceable(cluster: ClusterConfig, found: Sequence[Node]) -> list[str]:
    """Why Slurm could never start the job on `found`, each reason with what there is."""
    partitions = sorted({n.partition for n in found})
    name = cluster.partition or next((n.partition for n in found if n.default), None)
    if name is None:
        return [
            f"cluster.partition is not set and this cluster has no default; one of: {_list(partitions)}"
        ]
    here = [n for n in found if n.partition == name]
    if not here:
        return [
            f"cluster.partition {name!r}: there is no such partition{nearest(name, partitions)}; "
            f"there are: {_list(partitions)}"
        ]
    problems = []
    for key, wanted, most in (
        ("gpus_per_node", cluster.gpus_per_node, max(n.gpus for n in here)),
        ("cpus_per_task", cluster.cpus_per_task, max(n.cpus for n in here)),
    ):
        if wanted > most:
            problems.append(
                f"cluster.{key} is {wanted}, but no node of partition {name!r} has more than {most}; "
                "lower it, or choose another partition"
            )
    fitting = [
        n for n in here if n.gpus >= cluster.gpus_per_node and n.cpus >= cluster.cpus_per_task
    ]
    if not problems and len(fitting) < cluster.nodes:
        problems.append(
            f"cluster.nodes is {cluster.nodes}, but partition {name!r} has {len(fitting)} nodes "
            "with that many CPUs and GPUs; lower it"
        )
    limit = here[0].limit_s
    if limit is not None and cluster.seconds > limit:
        problems.append(
            f"cluster.time is {cluster.time} ({cluster.seconds} s), but partition {name!r} allows "
            f"{limit} s; lower it (the job is requeued at its limit and goes on)"
        )
    return problems


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
