"""How a run ended: the statuses of an episode and the record that carries one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Status = Literal[
    "completed", "truncated", "agent_error", "harness_error", "infra_error", "contract_violation"
]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. output: the last text of the model. steps: turns begun."""

    status: Status
    reason: str
    steps: int
    output: str
