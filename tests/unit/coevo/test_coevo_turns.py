"""Colocated, a round of training: the engine sleeps, the trainer ends, publication wakes the engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from test_coevo_training import Counter, trajectory

from coevo.config import load_config
from coevo.live import LiveTable
from coevo.rundir import RunDir
from coevo.training import Learner
from rollout.buffer import ReplayBuffer
from rollout.policy.base import EngineError, Request, Sampling
from rollout.policy.scripted import ScriptedEngine
from rollout.policy.weights import fingerprint_file

REQUEST = Request((1, 2), Sampling())


class Trainer(Counter):
    """Counts, writes real weights, and notes whether the engine slept when it was asked."""

    def __init__(self, engine: ScriptedEngine, notes: list[str]) -> None:
        super().__init__()
        self.engine, self.notes = engine, notes
        notes.append(f"trainer starts, engine {'asleep' if engine.asleep else 'awake'}")

    def publish(self, path: Path) -> str:
        path.parent.mkdir(parents=True)
        save_file({"weight": np.ones(3, dtype=np.float32)}, path)
        self.notes.append("weights written")
        return fingerprint_file(path)

    def shutdown(self) -> None:
        self.notes.append(f"trainer ends, engine {'asleep' if self.engine.asleep else 'awake'}")


def test_the_engine_sleeps_until_the_trainer_has_ended_and_its_weights_are_served(
    tmp_path: Path,
) -> None:
    config = load_config("configs/quickstart.yaml", ["resources.placement=colocated"])
    engine, notes = ScriptedEngine(lambda prompt: (7,)), []
    stack: Any = SimpleNamespace(policy=engine, trainer=lambda: Trainer(engine, notes))
    buffer = ReplayBuffer(tmp_path, 2, 1000)
    buffer.append(0, "incumbent", [trajectory(0, i) for i in range(4)])
    learner = Learner(RunDir(tmp_path), config, stack, buffer, LiveTable(live=False))

    async def a_round() -> int:
        result = await learner.train(0, 0)
        with pytest.raises(EngineError, match="publish weights to wake it"):
            await engine.generate([REQUEST])
        await learner.serve(1, result["fingerprint"])
        (sample,) = await engine.generate([REQUEST])
        return sample.version

    assert asyncio.run(a_round()) == 1
    assert notes == [
        "trainer starts, engine asleep",
        "weights written",
        "trainer ends, engine asleep",
    ]


def test_a_round_that_does_not_train_leaves_the_engine_awake(tmp_path: Path) -> None:
    config = load_config(
        "configs/quickstart.yaml", ["resources.placement=colocated", "buffer.min_rounds=2"]
    )
    engine = ScriptedEngine(lambda prompt: (7,))
    stack: Any = SimpleNamespace(policy=engine)
    buffer = ReplayBuffer(tmp_path, 2, 1000)
    buffer.append(0, "incumbent", [trajectory(0, i) for i in range(4)])
    learner = Learner(RunDir(tmp_path), config, stack, buffer, LiveTable(live=False))
    assert asyncio.run(learner.train(0, 0))["version"] == 0
    assert not engine.asleep
