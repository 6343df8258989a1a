"""What is to be rolled out: a task, a harness, a seed; light to import, so that planning is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from rollout.task import Task
from rollout.trajectory import Role


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """What to roll out. `id` is unique in the run and stays the same when it is issued again."""

    id: str
    task: Task
    harness_id: str
    role: Role
    round: int
    policy_version: int
    seed: int


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from the parts' text, the same on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
