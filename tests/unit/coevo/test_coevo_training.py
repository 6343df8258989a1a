"""The training phase around a trainer that only counts: behaviour pass, window, mismatch."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coevo.config import load_config
from coevo.live import LiveTable
from coevo.rundir import RunDir
from coevo.training import Learner
from rollout.buffer import ReplayBuffer
from rollout.trajectory import Outcome, Role, Segment, Trajectory
from trainer.batch import TrainBatch
from trainer.errors import TrainerError


class Counter:
    """A trainer group that keeps what it is asked: its log-probs are the engine's minus 0.125 at
    each pass, so a second pass over the same tokens would show."""

    def __init__(self) -> None:
        self.scored: list[int] = []
        self.batches: list[TrainBatch] = []

    def behaviour_logprobs(self, batch: TrainBatch) -> np.ndarray:
        self.scored.append(len(batch.token_ids))
        return np.where(batch.loss_mask, batch.behaviour - 0.125 * len(self.scored), 0).astype("f4")

    def train(self, batch: TrainBatch) -> list[dict[str, float]]:
        self.batches.append(batch)
        return [{"loss": 1.0}]

    def save_checkpoint(self, path: Path, extra: dict[str, Any]) -> None: ...

    def publish(self, path: Path) -> str:
        return "fingerprint"

    def score(self, sequences: list[list[int]]) -> list[list[float]]:
        return [[0.0] * (len(s) - 1) for s in sequences]


class Endless(Counter):
    """Trains until its ranks are ended."""

    def __init__(self) -> None:
        super().__init__()
        self.training, self.aborted, self.over = (threading.Event() for _ in range(3))

    def train(self, batch: TrainBatch) -> list[dict[str, float]]:
        self.training.set()
        self.aborted.wait(60)
        self.over.set()
        raise TrainerError("rank 0 of 1 died")

    def abort(self) -> None:
        self.aborted.set()


def trajectory(
    round: int, number: int, role: Role = "incumbent", version: int | None = None
) -> Trajectory:
    n = 3 + number
    mask = np.arange(n) > 0
    segment = Segment(
        np.arange(n, dtype=np.int32), mask, np.where(mask, -1.0, 0).astype(np.float32),
        np.where(mask, round if version is None else version, -1).astype(np.int32), 1.0,
    )  # fmt: skip
    return Trajectory(
        f"{role}-{round}-{number}", f"task-{number % 2}", round, role, "h", round, 0,
        Outcome("completed"), float(number % 2), bool(number % 2), 1, (segment,),
    )  # fmt: skip


class World:
    """A run of the quickstart's configuration whose rollouts are made up."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> None:
        self.config = load_config("configs/quickstart.yaml", ["buffer.window=2", *overrides])
        self.root = root
        self.group = Counter()
        self.open()
        monkeypatch.setattr(Learner, "_ready", lambda *_: self.group)

    def open(self) -> None:
        """As a fresh process does."""
        self.buffer = ReplayBuffer(self.root, 2, 1000)
        run: Any = RunDir(self.root)
        self.learner = Learner(run, self.config, None, self.buffer, LiveTable(live=False))  # type: ignore[arg-type]

    def train(self, round: int) -> dict[str, Any]:
        return asyncio.run(self.learner.train(round, round))


def test_each_token_is_scored_by_the_trainer_once_and_then_read_from_the_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    for number in range(3):
        world.open()
        world.buffer.append(number, "incumbent", [trajectory(number, i) for i in range(4)])
        # A run killed after the pass trains again, with no second forward.
        first, again = world.train(number), world.train(number)
        assert first["metrics"] == again["metrics"]
    each = sum(3 + i for i in range(4))
    assert world.group.scored == [each] * 3
    for batch, (old, new) in zip(world.group.batches[2::2], [(1, 2), (2, 3)], strict=True):
        passes = np.repeat([old, new], each)
        expected = np.where(batch.loss_mask, batch.behaviour - 0.125 * passes, 0)
        assert batch.old is not None
        assert batch.old.tolist() == pytest.approx(expected.tolist())
    assert first["metrics"]["mismatch_max"] == pytest.approx(0.375)
    assert first["metrics"]["mismatch_mean"] == pytest.approx(0.375)


def test_the_decoupled_objective_gets_log_probs_of_what_candidates_sampled_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, "trainer.ratio=decoupled")
    world.buffer.append(0, "incumbent", [trajectory(0, i) for i in range(2)])
    world.train(0)
    world.buffer.append(0, "select-0", [trajectory(0, i, "candidate") for i in range(2)])
    world.buffer.append(1, "incumbent", [trajectory(1, i) for i in range(2)])
    world.train(1)
    assert world.group.scored == [7, 7, 7]
    assert world.group.batches[1].old is not None
    assert world.train(1)["metrics"]["mismatch_mean"] is not None
    assert world.group.scored == [7, 7, 7]


def test_what_is_trained_on_does_not_depend_on_how_far_evolution_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    world.buffer.append(0, "incumbent", [trajectory(0, i) for i in range(4)])
    world.buffer.append(1, "incumbent", [trajectory(1, i) for i in range(4)])
    world.train(1)
    world.buffer.append(1, "select-0", [trajectory(1, i, "candidate") for i in range(9)])
    # The window would no longer hold round 0 if the candidates of round 1 counted.
    world.buffer.max_trajectories = 10
    world.train(1)
    before, after = world.group.batches
    assert before.token_ids.tolist() == after.token_ids.tolist()


def test_rows_too_old_are_counted_in_the_rounds_staleness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    late = [trajectory(3, i, version=1 if i == 0 else 3) for i in range(4)]
    world.buffer.append(3, "incumbent", late)
    staleness = world.train(3)["staleness"]
    assert staleness == {"histogram": {"0": 3}, "max": 0, "dropped": 1}


def test_a_training_beside_a_phase_that_fails_is_over_before_the_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    world.group = endless = Endless()
    world.learner._group = endless  # type: ignore[assignment]
    world.buffer.append(0, "incumbent", [trajectory(0, i) for i in range(4)])

    async def evolve() -> None:
        while not endless.training.is_set():
            await asyncio.sleep(0.01)
        raise OSError("the disk is full")

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(world.learner.train(0, 0))
            group.create_task(evolve())

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(both())
    assert [str(e) for e in caught.value.exceptions] == ["the disk is full"]
    assert endless.over.is_set()
    assert world.learner._group is None
