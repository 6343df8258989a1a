"""What a trainer and engines agree on before weights are broadcast: who joins where, and the buckets.

Imports no torch. `rollout.policy.collective` sends and receives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

ALIGNMENT = 16
"""Bytes: tensors of a bucket start at multiples, so that each can be viewed in its own type."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of a bucket. dtype: as torch names it ("float32"); offset, size: bytes in the bucket."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """One broadcast of `size` bytes."""

    tensors: tuple[TensorSpec, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Broadcast:
    """One publication. host, port: of the sender's store. receivers: processes that must join: one a
    worker of every engine. timeout_s: for joining, and for each bucket; the whole may take twice that."""

    host: str
    port: int
    receivers: int
    backend: Literal["gloo", "nccl"]
    timeout_s: float
    buckets: tuple[Bucket, ...]

    def __str__(self) -> str:
        return f"the broadcast of {len(self.buckets)} buckets from {self.host}:{self.port}"


def plan_buckets(
    tensors: Iterable[tuple[str, str, tuple[int, ...], int]], bucket_bytes: int
) -> tuple[Bucket, ...]:
    """Buckets of at most `bucket_bytes`, in the given order; a larger tensor is alone.

    tensors: (name, dtype, shape, bytes).
    """
    buckets: list[Bucket] = []
    current: list[TensorSpec] = []
    end = 0
    for name, dtype, shape, size in tensors:
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        if current and offset + size > bucket_bytes:
            buckets.append(Bucket(tuple(current), end))
            current, offset = [], 0
        current.append(TensorSpec(name, dtype, shape, offset, size))
        end = offset + size
    if current:
        buckets.append(Bucket(tuple(current), end))
    return tuple(buckets)
