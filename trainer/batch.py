"""The training batch: flat numpy arrays over segments, as they travel to the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollout.trajectory import TRAINABLE, Trajectory
from trainer.advantage import AdvantageReport, advantages
from trainer.config import Aggregation
from trainer.errors import BatchError

if TYPE_CHECKING:
    from rollout.buffer import BufferView


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """n tokens in s segments of t trajectories.

    token_ids: int32 [n]. loss_mask: bool [n], True on sampled tokens. behaviour: float32 [n], the
    engine's log-probs of sampled tokens, 0 elsewhere. offsets: int64 [s+1]. trajectory: int64 [s],
    the trajectory of each segment. group: int64 [t], a number for each task. advantage: float32
    [t]. temperature: of every sampled token. old: float32 [n], the trainer's own log-probs at
    insertion, for the decoupled objective. Arrays may be read-only.
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    behaviour: np.ndarray
    offsets: np.ndarray
    trajectory: np.ndarray
    group: np.ndarray
    advantage: np.ndarray
    temperature: float
    old: np.ndarray | None = None

    def __post_init__(self) -> None:
        n, s, t = len(self.token_ids), len(self.offsets) - 1, len(self.advantage)
        shapes = {"loss_mask": n, "behaviour": n, "trajectory": s, "group": t}
        if self.old is not None:
            shapes["old"] = n
        for name, size in shapes.items():
            if len(getattr(self, name)) != size:
                raise BatchError(
                    f"batch: {name} has {len(getattr(self, name))} entries, expected {size} "
                    f"({n} tokens, {s} segments, {t} trajectories)"
                )
        lengths = np.diff(self.offsets)
        if s and (self.offsets[0] != 0 or self.offsets[-1] != n or (lengths <= 0).any()):
            raise BatchError(f"batch: offsets must rise from 0 to {n} tokens with no empty segment")
        if s and (self.trajectory.min() < 0 or self.trajectory.max() >= t):
            raise BatchError(f"batch: a segment names a trajectory outside 0…{t - 1}")
        if s and self.loss_mask[self.offsets[:-1]].any():
            at = int(np.flatnonzero(self.loss_mask[self.offsets[:-1]])[0])
            raise BatchError(
                f"batch: the first token of segment {at} is marked as sampled, but nothing precedes "
                "it to predict it from"
            )
        for name in ("behaviour", "old"):
            array = getattr(self, name)
            if array is not None and not np.isfinite(array[self.loss_mask]).all():
                raise BatchError(f"batch: a sampled token has a non-finite log-prob in {name!r}")
        if not np.isfinite(self.advantage).all():
            raise BatchError("batch: an advantage is not finite")
        if not self.temperature > 0:
            raise BatchError(
                f"batch: temperature is {self.temperature}; training needs sampling at T > 0"
            )

    @property
    def segments(self) -> int:
        return len(self.offsets) - 1

    def sampled_by_segment(self) -> np.ndarray:
        """int64 [s]: sampled tokens of each segment."""
        if not self.segments:
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(self.loss_mask.astype(np.int64), self.offsets[:-1])

    def sampled_by_trajectory(self) -> np.ndarray:
        """int64 [t]: sampled tokens of each trajectory."""
        counts = np.zeros(len(self.advantage), dtype=np.int64)
        np.add.at(counts, self.trajectory, self.sampled_by_segment())
        return counts


def normaliser(
    batch: TrainBatch, chosen: np.ndarray, aggregation: Aggregation, constant_length: int | None
) -> tuple[np.ndarray, float]:
    """Weight of a sampled token by trajectory (float32 [t]) and the step's denominator.

    chosen: bool [t], trajectories of this optimiser step. The denominator counts all of them, over
    all ranks and micro-batches, and those of zero advantage too: dropping these saves a forward
    pass and changes nothing else. loss = Σ weight · token loss / denominator.
    """
    counts = batch.sampled_by_trajectory()
    live = chosen & (counts > 0)
    if aggregation == "token":
        return np.ones(len(counts), dtype=np.float32), float(max(counts[live].sum(), 1))
    if aggregation == "trajectory":
        return (1.0 / np.maximum(counts, 1)).astype(np.float32), float(max(live.sum(), 1))
    if constant_length is None:
        raise BatchError("aggregation 'constant' needs constant_length")
    return np.ones(len(counts), dtype=np.float32), float(max(live.sum(), 1) * constant_length)


def single_temperature(temperatures: Sequence[float] | np.ndarray) -> float:
    """The one temperature of a run's segments; BatchError where they are mixed."""
    values = np.unique(np.asarray(temperatures, dtype=np.float64))
    if len(values) != 1:
        raise BatchError(
            f"batch: segments were sampled at temperatures {[float(v) for v in values]}; a run "
            "trains at one temperature, because logits are divided by it"
        )
    return float(values[0])


def make_batch(
    *,
    token_ids: np.ndarray,
    loss_mask: np.ndarray,
    behaviour: np.ndarray,
    offsets: np.ndarray,
    trajectory: np.ndarray,
    rewards: np.ndarray,
    groups: Sequence[str] | np.ndarray,
    harnesses: Sequence[str] | np.ndarray,
    outcomes: Sequence[str] | np.ndarray,
    temperatures: Sequence[float] | np.ndarray | float,
    advantage: str,
    old: np.ndarray | None = None,
) -> tuple[TrainBatch, AdvantageReport]:
    """A batch from flat arrays (token arrays [n], segment arrays [s], trajectory arrays [t]).

    Trajectories whose outcome is not trainable leave their group, and their segments the batch.
    """
    kept = np.isin(np.asarray(outcomes), sorted(TRAINABLE))
    report = advantages(advantage, rewards, groups, harnesses, kept)
    offsets = np.asarray(offsets, dtype=np.int64)
    trajectory = np.asarray(trajectory, dtype=np.int64)
    keep_segment = kept[trajectory] if len(trajectory) else np.zeros(0, dtype=bool)
    lengths = np.diff(offsets)
    keep_token = np.repeat(keep_segment, lengths)
    temps = np.broadcast_to(np.asarray(temperatures, dtype=np.float64), lengths.shape)[keep_segment]
    _, numbers = np.unique(np.asarray(groups), return_inverse=True)
    batch = TrainBatch(
        token_ids=np.asarray(token_ids, dtype=np.int32)[keep_token],
        loss_mask=np.asarray(loss_mask, dtype=bool)[keep_token],
        behaviour=np.asarray(behaviour, dtype=np.float32)[keep_token],
        offsets=np.concatenate([[0], np.cumsum(lengths[keep_segment])]).astype(np.int64),
        trajectory=trajectory[keep_segment],
        group=numbers.astype(np.int64),
        advantage=report.advantages.astype(np.float32),
        temperature=single_temperature(temps) if len(temps) else 1.0,
        old=None if old is None else np.asarray(old, dtype=np.float32)[keep_token],
    )
    return batch, report


def from_trajectories(
    trajectories: Sequence[Trajectory], advantage: str
) -> tuple[TrainBatch, AdvantageReport]:
    """`make_batch` over trajectory records."""
    segments = [(i, s) for i, t in enumerate(trajectories) for s in t.segments]

    def joined(name: str, dtype: type) -> np.ndarray:
        parts: list[np.ndarray] = [np.asarray(getattr(s, name), dtype=dtype) for _, s in segments]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)

    return make_batch(
        token_ids=joined("token_ids", np.int32),
        loss_mask=joined("loss_mask", np.bool_),
        behaviour=joined("logprobs", np.float32),
        offsets=np.concatenate([[0], np.cumsum([len(s) for _, s in segments])]).astype(np.int64),
        trajectory=np.array([i for i, _ in segments], dtype=np.int64),
        rewards=np.array([t.reward for t in trajectories], dtype=np.float64),
        groups=[t.group for t in trajectories],
        harnesses=[t.harness_id for t in trajectories],
        outcomes=[t.outcome.kind for t in trajectories],
        temperatures=[s.temperature for _, s in segments],
        advantage=advantage,
        old=None,
    )


def from_view(view: BufferView, advantage: str) -> tuple[TrainBatch, AdvantageReport]:
    """`make_batch` over what the replay buffer selected."""
    return make_batch(
        token_ids=view.token_ids,
        loss_mask=view.loss_mask,
        behaviour=view.logprobs,
        offsets=view.offsets,
        trajectory=view.trajectory,
        rewards=view.rewards,
        groups=view.groups,
        harnesses=view.harnesses,
        outcomes=view.outcomes,
        temperatures=view.temperatures,
        advantage=advantage,
        old=view.trainer_logprobs,
    )


def for_scoring(view: BufferView) -> TrainBatch:
    """Every segment of the view, trainable or not, without advantages: for the behaviour pass,
    whose log-probs must match the view token by token."""
    count = len(view.rewards)
    return TrainBatch(
        token_ids=view.token_ids,
        loss_mask=view.loss_mask,
        behaviour=view.logprobs,
        offsets=view.offsets,
        trajectory=view.trajectory,
        group=np.zeros(count, dtype=np.int64),
        advantage=np.zeros(count, dtype=np.float32),
        temperature=single_temperature(view.temperatures) if len(view.temperatures) else 1.0,
    )
