"""Training batches: what may enter, and the denominators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rollout.buffer import BufferView
from rollout.trajectory import Outcome, OutcomeKind, Segment, Trajectory
from trainer.batch import for_scoring, from_trajectories, from_view, normaliser, single_temperature
from trainer.errors import BatchError


def segment(tokens: list[int], sampled: list[int], temperature: float = 1.0) -> Segment:
    mask = np.array(sampled, dtype=bool)
    return Segment(
        token_ids=np.array(tokens, dtype=np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        temperature=temperature,
    )


def trajectory(
    name: str,
    reward: float,
    segments: tuple[Segment, ...],
    outcome: OutcomeKind = "completed",
    task: str = "task",
) -> Trajectory:
    return Trajectory(
        id=name,
        task_id=task,
        round=0,
        role="incumbent",
        harness_id="h",
        policy_version=0,
        seed=0,
        outcome=Outcome(outcome),
        reward=reward,
        success=reward == 1.0,
        steps=1,
        segments=segments,
    )


ONE = segment([1, 2, 3, 4, 5], [0, 1, 0, 0, 1])
SPLIT = (segment([1, 2], [0, 1]), segment([1, 2, 3, 4, 5], [0, 0, 0, 0, 1]))


def test_errors_of_harness_or_infrastructure_bring_no_tokens() -> None:
    batch, report = from_trajectories(
        [
            trajectory("a", 1.0, (ONE,)),
            trajectory("b", 0.0, (ONE,)),
            trajectory("c", 0.0, (ONE,), "infra_error"),
            trajectory("d", 0.0, (ONE,), "harness_error"),
        ],
        "pooled",
    )
    assert batch.segments == 2
    assert batch.advantage.tolist() == [1.0, -1.0, 0.0, 0.0]
    assert report.kept.tolist() == [True, True, False, False]


def test_splitting_a_trajectory_changes_neither_baseline_nor_denominator() -> None:
    whole, _ = from_trajectories(
        [trajectory("a", 1.0, (ONE,)), trajectory("b", 0.0, (ONE,))], "pooled"
    )
    split, _ = from_trajectories(
        [trajectory("a", 1.0, SPLIT), trajectory("b", 0.0, (ONE,))], "pooled"
    )
    assert whole.advantage.tolist() == split.advantage.tolist()
    every = np.ones(2, dtype=bool)
    for aggregation in ("token", "trajectory", "constant"):
        w1, d1 = normaliser(whole, every, aggregation, 10)  # type: ignore[arg-type]
        w2, d2 = normaliser(split, every, aggregation, 10)  # type: ignore[arg-type]
        assert d1 == d2
        assert w1.tolist() == w2.tolist()


def test_the_denominator_counts_trajectories_without_advantage_too() -> None:
    batch, _ = from_trajectories(
        [
            trajectory("a", 1.0, (ONE,)),
            trajectory("b", 0.0, (ONE,)),
            trajectory("c", 0.0, (ONE,), task="other"),
        ],
        "pooled",
    )
    every = np.ones(3, dtype=bool)
    assert normaliser(batch, every, "token", None)[1] == 6
    assert normaliser(batch, every, "trajectory", None)[1] == 3
    assert normaliser(batch, every, "constant", 50)[1] == 150
    assert normaliser(batch, np.array([True, False, False]), "token", None)[1] == 2


def test_mixed_temperatures_are_refused() -> None:
    with pytest.raises(BatchError, match=r"\[0.7, 1.0\]"):
        from_trajectories(
            [
                trajectory("a", 1.0, (segment([1, 2], [0, 1], 0.7),)),
                trajectory("b", 0.0, (segment([1, 2], [0, 1], 1.0),)),
            ],
            "pooled",
        )
    assert single_temperature([0.7, 0.7]) == 0.7


def test_a_sampled_token_that_nothing_precedes_is_refused() -> None:
    with pytest.raises(BatchError, match="segment 0 is marked as sampled"):
        from_trajectories([trajectory("a", 1.0, (segment([1, 2], [1, 1]),))], "pooled")


def test_a_missing_logprob_is_refused() -> None:
    batch, _ = from_trajectories([trajectory("a", 1.0, (ONE,))], "pooled")
    with pytest.raises(BatchError, match="non-finite log-prob"):
        replace(batch, behaviour=np.full(5, np.nan, dtype=np.float32))


def test_an_empty_round_is_an_empty_batch() -> None:
    batch, report = from_trajectories([], "pooled")
    assert (batch.segments, report.groups) == (0, 0)


def test_a_view_of_the_buffer_trains_as_its_trajectories_and_is_scored_whole() -> None:
    trajectories = [
        trajectory("a", 1.0, SPLIT),
        trajectory("b", 0.0, (ONE,), "harness_error"),
        trajectory("c", 0.0, (ONE,)),
    ]
    segments = [s for t in trajectories for s in t.segments]
    view = BufferView(
        token_ids=np.concatenate([s.token_ids for s in segments]),
        loss_mask=np.concatenate([s.loss_mask for s in segments]),
        logprobs=np.concatenate([s.logprobs for s in segments]),
        versions=np.concatenate([s.versions for s in segments]),
        trainer_logprobs=None,
        offsets=np.concatenate([[0], np.cumsum([len(s) for s in segments])]),
        trajectory=np.array([0, 0, 1, 2]),
        temperatures=np.ones(4),
        ids=np.array(["a", "b", "c"]),
        groups=np.array(["task"] * 3),
        harnesses=np.array(["h"] * 3),
        outcomes=np.array([t.outcome.kind for t in trajectories]),
        roles=np.array(["incumbent"] * 3),
        rewards=np.array([1.0, 0.0, 0.0]),
        success=np.array([True, False, False]),
        policy_versions=np.zeros(3, dtype=np.int32),
        rounds=np.zeros(3, dtype=np.int32),
    )
    found, _ = from_view(view, "pooled")
    expected, _ = from_trajectories(trajectories, "pooled")
    for name in ("token_ids", "loss_mask", "behaviour", "offsets", "trajectory", "advantage"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()
    whole = for_scoring(view)
    assert len(whole.token_ids) == len(view.token_ids)
    assert whole.segments == 4
