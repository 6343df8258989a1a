"""Checks of the machine against what a run needs: CPUs, GPUs, memory, disk. Imports no torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from coevo.config import RunConfig
from coevo.memory import (
    GIB,
    HEADROOM,
    disk_parts,
    host_bytes,
    kv_tokens,
    max_model_len,
    plan,
    shown,
)
from coevo.model_shape import ModelShape
from coevo.placement import booked_cpus, booked_gpus, gpus_needed, misplaced
from coevo.preflight.checks import Check, fail, ok, warn

DISK_RESERVE = GIB
"""Left free beside what the run writes."""


@dataclass(frozen=True, slots=True)
class Machine:
    """cpus: cores. gpus: bytes of each. host, disk: bytes of memory, bytes free. None: not known,
    because the run is computed elsewhere. `where`: for messages."""

    cpus: int | None
    gpus: tuple[int, ...] | None
    host: int | None
    disk: int | None
    where: str = "this machine"


def this_machine(runs_dir: Path) -> Machine:
    """What nvidia-smi and the operating system say; limits of a container or job count."""
    return Machine(len(os.sched_getaffinity(0)), nvidia_gpus(), host_memory(), free_bytes(runs_dir))


def machine_of(config: RunConfig) -> Machine:
    """Where the run is computed: this machine, or the nodes of `cluster`. What `resources` says
    replaces what was found."""
    here = this_machine(Path(config.runs_dir))
    resources, cluster = config.resources, config.cluster
    gpu, host = resources.gpu_memory_gib, resources.host_memory_gib
    memory = int(host * GIB) if host else here.host
    gpus = here.gpus
    if cluster is None:
        if gpu:
            # Named where there are none to see: the count that the run books is taken for granted.
            count = len(gpus or ()) or gpus_needed(config)
            gpus = (int(gpu * GIB),) * count
        return Machine(here.cpus, gpus, memory, here.disk)
    known = gpu * GIB if gpu else min(gpus or (0,))
    return Machine(
        cluster.cpus(),
        (int(known),) * cluster.gpus() if known or not cluster.gpus() else None,
        int(host * GIB) if host else None,
        here.disk,
        f"the job's {cluster.nodes} node{'s' * (cluster.nodes > 1)}",
    )


def machine_checks(config: RunConfig, machine: Machine, shape: ModelShape | None) -> list[Check]:
    """shape: of the task model, None where it is not known (a hosted or unreadable one)."""
    checks = [_cpus(config, machine)]
    if config.policy.api is None:
        checks.append(_gpus(config, machine))
    if shape is not None:
        checks += [*_kv(config, shape), *_memory(config, machine, shape)]
        checks.append(_disk(config, machine, shape))
    return checks


def _cpus(config: RunConfig, machine: Machine) -> Check:
    booked = booked_cpus(config)
    found = f"the run books {booked:g} CPUs, {machine.where} has {machine.cpus}"
    if config.cluster is not None:
        wrong = misplaced(config, config.cluster)
        return fail("placement", wrong[0], "see docs/cluster.md") if wrong else ok("CPUs", found)
    given = config.resources.num_cpus
    if given is not None and given < booked:
        return fail(
            "CPUs", f"the run books {booked:g} CPUs, resources.num_cpus is {given}", "raise it"
        )
    if machine.cpus is not None and booked > machine.cpus:
        return ok("CPUs", f"{found}: they are shared")
    return ok("CPUs", found)


def _gpus(config: RunConfig, machine: Machine) -> Check:
    engine, trainer = booked_gpus(config)
    if not engine + trainer:
        return ok("GPUs", "none asked for: device cpu")
    together = config.colocated
    needed = gpus_needed(config)
    each = f"engines {engine}, trainer {trainer}, {config.resources.placement}"
    if machine.gpus is None:
        return ok("GPUs", f"{needed} booked ({each}), as the job asks for")
    if len(machine.gpus) >= needed:
        return ok("GPUs", f"{needed} of {len(machine.gpus)} ({each})")
    ways = "lower policy.engine.replicas, tensor_parallel or trainer.world_size"
    if not together:
        ways += "; or resources.placement: colocated"
    return fail(
        "GPUs", f"the run books {needed} ({each}) and {machine.where} has {len(machine.gpus)}", ways
    )


def _kv(config: RunConfig, shape: ModelShape) -> list[Check]:
    held, longest = kv_tokens(shape, config), max_model_len(config)
    found = f"policy.engine.kv_cache_bytes holds {held:,} tokens, a request up to {longest:,}"
    if held < longest:
        least = -(-longest * config.policy.engine.kv_cache_bytes // max(held, 1)) * 11 // 10
        return [fail("KV cache", found, f"set policy.engine.kv_cache_bytes to {least:,} or more")]
    open_requests = min(
        config.policy.engine.max_num_seqs,
        -(-config.rollout.workers * config.rollout.concurrency // config.policy.engine.replicas),
    )
    if held < open_requests * longest // 4:
        return [
            warn(
                "KV cache",
                f"{found}; {open_requests} requests are open at once: they will wait for each other",
                "raise policy.engine.kv_cache_bytes, or lower rollout.concurrency",
            )
        ]
    return [ok("KV cache", f"{found} ({held // longest} whole ones at once)")]


def _memory(config: RunConfig, machine: Machine, shape: ModelShape) -> list[Check]:
    needed = plan(shape, config)
    device = config.policy.engine.device
    checks = []
    if device == "cuda":
        found = f"engine: {shown(needed.engine)}"
        if needed.trainer:
            found += f"; trainer rank: {shown(needed.trainer)}"
        if machine.gpus:
            checks.append(_gpu_memory(config, needed.gpu, min(machine.gpus), found))
        else:
            checks.append(
                warn(
                    "GPU memory",
                    f"{found}; the GPUs' memory is not known",
                    "set resources.gpu_memory_gib",
                )
            )
    total = host_bytes(needed, device)
    parts = dict(needed.host)
    if device == "cpu":
        for whose, more in (("engine", needed.engine), ("trainer", needed.trainer)):
            parts |= {f"{whose} {name}": size for name, size in more.items()}
    checks.append(_host_memory(total, machine.host, shown(parts)))
    return checks


def _gpu_memory(config: RunConfig, needed: int, has: int, found: str) -> Check:
    found = f"{needed / GIB:.1f} of {has / GIB:.1f} GiB a GPU ({found})"
    if needed <= HEADROOM * has:
        return ok("GPU memory", found)
    trainer, engine = config.trainer, config.policy.engine
    ways = []
    if trainer.zero_stage < 3:
        ways.append("trainer.zero_stage: 3")
    if trainer.offload.optimizer == "none":
        ways.append("trainer.offload.optimizer: cpu")
    if not trainer.gradient_checkpointing:
        ways.append("trainer.gradient_checkpointing: true")
    if trainer.lora is None:
        ways.append("trainer.lora")
    ways += ["a smaller trainer.micro_batch_tokens", "more trainer.world_size"]
    return fail(
        "GPU memory",
        found,
        f"one of {', '.join(ways)} for the trainer; policy.engine.tensor_parallel (now "
        f"{engine.tensor_parallel}) or a smaller kv_cache_bytes for the engine",
    )


def _host_memory(needed: int, has: int | None, found: str) -> Check:
    if has is None:
        return warn(
            "host memory",
            f"{needed / GIB:.1f} GiB a node ({found}); the node's memory is not known",
            "set resources.host_memory_gib",
        )
    found = f"{needed / GIB:.1f} of {has / GIB:.1f} GiB ({found})"
    if needed > has:
        return fail(
            "host memory",
            found,
            "a smaller model, trainer.offload none, a smaller trainer.micro_batch_tokens or "
            "kv_cache_bytes, or a machine with more",
        )
    return ok("host memory", found)


def _disk(config: RunConfig, machine: Machine, shape: ModelShape) -> Check:
    parts = disk_parts(shape, config)
    needed = sum(parts.values())
    found = f"up to {needed / GIB:.1f} GiB over {config.rounds} rounds ({shown(parts)})"
    if machine.disk is None:
        return ok("disk", found)
    found += (
        f"; {machine.disk / GIB:.1f} GiB are free under runs_dir {config.runs_dir}, "
        f"{DISK_RESERVE / GIB:.0f} GiB of it is kept free"
    )
    if needed + DISK_RESERVE > machine.disk:
        return fail(
            "disk",
            found,
            "another runs_dir, fewer rounds, storage.policy_weights, or trainer.lora.publish: adapter",
        )
    return ok("disk", found)


def nvidia_gpus() -> tuple[int, ...]:
    """Bytes of memory of each GPU that this process may use; () without a driver."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return ()
    found = tuple(int(line) << 20 for line in done.stdout.split("\n") if line.strip().isdigit())
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if allowed is None else found[: len([d for d in allowed.split(",") if d.strip()])]


def host_memory() -> int:
    """Bytes of the machine, or of this process's cgroup where that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(total, int(text)) if text.isdigit() else total


def free_bytes(directory: Path) -> int:
    """On the file system where `directory` is, or would be made."""
    there = directory.resolve()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free
