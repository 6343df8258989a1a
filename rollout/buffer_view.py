"""The replay buffer's window as flat arrays, read in one pass over its files."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from rollout.buffer_files import TOKEN_DTYPES, Part, TokenArrays
from rollout.trajectory import Role

PER_TOKEN = ("token_ids", "loss_mask", "logprobs", "versions")
ROW_COLUMNS: Mapping[str, type] = {
    "id": np.object_,
    "task_id": np.object_,
    "harness_id": np.object_,
    "outcome": np.object_,
    "role": np.object_,
    "reward": np.float64,
    "success": np.bool_,
    "policy_version": np.int32,
    "round": np.int32,
}


@dataclass(frozen=True, slots=True)
class BufferView:
    """n tokens in s segments of t trajectories, oldest round first; arrays may be read-only.

    token_ids int32 [n] · loss_mask bool [n] · logprobs float32 [n] (behaviour, of the engine) ·
    versions int32 [n] (−1 where not sampled) · trainer_logprobs float32 [n] or None where a part
    has none yet · offsets int64 [s+1] · trajectory int64 [s] · temperatures float64 [s] · ids,
    groups, harnesses, outcomes, roles: str [t] · rewards float64 [t] · success bool [t] ·
    policy_versions, rounds int32 [t]. stale: trajectories left out because a token is too old.
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    trainer_logprobs: np.ndarray | None
    offsets: np.ndarray
    trajectory: np.ndarray
    temperatures: np.ndarray
    ids: np.ndarray
    groups: np.ndarray
    harnesses: np.ndarray
    outcomes: np.ndarray
    roles: np.ndarray
    rewards: np.ndarray
    success: np.ndarray
    policy_versions: np.ndarray
    rounds: np.ndarray
    stale: int = 0

    @property
    def trajectories(self) -> int:
        return len(self.ids)

    @property
    def segments(self) -> int:
        return len(self.trajectory)


def view(
    parts: Sequence[Part], roles: Collection[Role] | None, oldest: int | None = None
) -> BufferView:
    """Trajectories of the parts with one of `roles` (None: all), in order.

    oldest: a trajectory with a trainable token of an earlier policy version is left out, and
    counted in `stale`. Raises CorruptPartError, and ReplayError where token data was deleted.
    """
    chosen = [
        np.ones(part.count, dtype=bool)
        if roles is None
        else np.isin(part.column("role").astype(str), list(roles))
        for part in parts
    ]
    pairs = [(p, c) for p, c in zip(parts, chosen, strict=True) if c.any()]
    parts, chosen = [p for p, _ in pairs], [c for _, c in pairs]
    counts = [part.manifest["tokens"] for part in parts]
    bounds = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    tokens = {name: np.empty(bounds[-1], TOKEN_DTYPES[name]) for name in PER_TOKEN}
    scored = all(part.has_trainer_logprobs for part in parts)
    trainer = np.empty(bounds[-1], np.float32) if scored else None

    def read(number: int) -> TokenArrays:
        cut = slice(bounds[number], bounds[number + 1])
        arrays = parts[number].tokens({name: values[cut] for name, values in tokens.items()})
        if trainer is not None:
            parts[number].trainer_logprobs(trainer[cut])
        return arrays

    # Reading and checksums release the interpreter's lock: parts are read side by side.
    with ThreadPoolExecutor(max(1, min(len(parts), os.cpu_count() or 1))) as pool:
        arrays = list(pool.map(read, range(len(parts))))
    stale = 0
    for part_tokens, kept in zip(arrays, chosen, strict=True):
        rows = _rows_before(oldest, part_tokens)
        stale += int(kept[rows].sum())
        kept[rows] = False
    row = {
        name: _joined([p.column(name)[c] for p, c in zip(parts, chosen, strict=True)], dtype)
        for name, dtype in ROW_COLUMNS.items()
    }
    sizes = [np.diff(a.offsets) for a in arrays]
    segments = [c[a.trajectory] for a, c in zip(arrays, chosen, strict=True)]
    if not all(kept.all() for kept in segments):  # the common case copies nothing here
        token = np.repeat(_joined(segments, np.bool_), _joined(sizes, np.int64))
        tokens = {name: values[token] for name, values in tokens.items()}
        trainer = None if trainer is None else trainer[token]
    base = np.concatenate([[0], np.cumsum([c.sum() for c in chosen])]).astype(np.int64)
    numbers = [
        (np.cumsum(c) - 1 + first)[a.trajectory][kept]
        for a, c, kept, first in zip(arrays, chosen, segments, base, strict=False)
    ]
    lengths = [size[kept] for size, kept in zip(sizes, segments, strict=True)]
    temperatures = [a.temperatures[kept] for a, kept in zip(arrays, segments, strict=True)]
    return BufferView(
        **tokens,
        trainer_logprobs=trainer,
        offsets=np.concatenate([[0], np.cumsum(_joined(lengths, np.int64))]).astype(np.int64),
        trajectory=_joined(numbers, np.int64),
        temperatures=_joined(temperatures, np.float64),
        ids=row["id"],
        groups=row["task_id"],
        harnesses=row["harness_id"],
        outcomes=row["outcome"],
        roles=row["role"],
        rewards=row["reward"],
        success=row["success"],
        policy_versions=row["policy_version"],
        rounds=row["round"],
        stale=stale,
    )


def _rows_before(oldest: int | None, arrays: TokenArrays) -> np.ndarray:
    """Rows of the part's trajectories that have a trainable token of a version before `oldest`."""
    if oldest is None:
        return np.zeros(0, dtype=np.int64)
    tokens = np.flatnonzero(arrays.loss_mask & (arrays.versions < oldest))
    segments = np.searchsorted(arrays.offsets, tokens, side="right") - 1
    return np.unique(arrays.trajectory[segments])


def _joined(values: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(values) if values else np.zeros(0, dtype=dtype)
