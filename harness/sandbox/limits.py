"""What one harness process may use, and how the kernel is told: resource limits."""

from __future__ import annotations

import resource
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one episode's harness process.

    memory_mb: address space beyond what the interpreter starts with. cpu_s: CPU time. silent_s:
    seconds in which the process owes the worker a message (a processor that does not return ends
    here). wall_s: of the whole episode where its budgets give none. file_mb: one file; the scratch
    directory of a bubblewrap sandbox has 16 MB in all. open_files: descriptors. calls: model and
    tool calls of one episode. calls_at_once: of them, at the same time.
    """

    memory_mb: int = 1024
    cpu_s: int = 300
    silent_s: float = 30.0
    wall_s: float = 1800.0
    file_mb: int = 8
    open_files: int = 64
    calls: int = 2000
    calls_at_once: int = 16

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def apply_rlimits(limits: Limits, mapped: int) -> None:
    """Set the resource limits of this process, hard and soft alike.

    mapped: bytes of address space that are not counted, those of the interpreter itself.
    """
    _set(resource.RLIMIT_AS, mapped + (limits.memory_mb << 20))
    # SIGXCPU at the first number ends the process; the second is the kernel's SIGKILL.
    _set(resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 1)
    _set(resource.RLIMIT_FSIZE, limits.file_mb << 20)
    _set(resource.RLIMIT_NOFILE, limits.open_files)
    _set(resource.RLIMIT_CORE, 0)
    _set(resource.RLIMIT_MEMLOCK, 0)
    _set(resource.RLIMIT_MSGQUEUE, 0)


def address_space() -> int:
    """Bytes of address space that this process has mapped now; 256 MiB where /proc is hidden."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return 256 << 20


def _set(which: int, soft: int, hard: int | None = None) -> None:
    _, ceiling = resource.getrlimit(which)
    hard = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(which, (soft, hard))
