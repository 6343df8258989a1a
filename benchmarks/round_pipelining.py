"""Synchronous against pipelined rounds, engines and trainer of known delay through the real loop.

    python benchmarks/round_pipelining.py [--rounds 6] [--rollout 2] [--train 2] [--measure 0.2]

What runs is `coevo.loop.Loop` with its journal, replay buffer, scheduler and records; only the
engines and the trainer sleep instead of computing. Each run is compared with what `coevo simulate`
forecasts for it. Needs no model, no Ray and no GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import io
import json
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from coevo.config import RunConfig, load_config
from coevo.live import LiveTable
from coevo.loop import Loop
from coevo.rundir import RunDir
from coevo.simulate import Speeds, simulate
from harness.trace import Level
from rollout.episode import EpisodeResult
from rollout.scheduler import Scheduler
from rollout.spec import EpisodeSpec
from rollout.trajectory import Cost, Outcome, Segment, Trajectory
from trainer.batch import TrainBatch
from trainer.checkpoint import seal, staging, verify
from trainer.errors import TrainerError

TOKENS = 8  # of an episode, half of them sampled


@dataclass(slots=True)
class TimedStack:
    """Stands where `coevo.stack.Stack` does. engines: as many workers. episode_s: of one episode; an
    engine runs them one by one. train_s: of one training."""

    config: RunConfig
    episode_s: float = 0.0
    train_s: float = 0.0
    level: str = "none"
    model: Path | None = None
    base_fingerprint: str = "base"
    measured: dict[Any, Any] = field(default_factory=dict)
    version: int = -1
    weights: str = ""
    running: int = 0  # episodes that an engine works on
    pool: Any = None

    def __post_init__(self) -> None:
        self.pool = _Pool(Scheduler(self.config.rollout, lambda: _Engine(self)))

    def check_fits(self, config: RunConfig) -> None: ...

    @property
    def policy(self) -> TimedStack:
        return self

    def trainer(self) -> TimedTrainer:
        return TimedTrainer(self.train_s)

    async def serve_base(self) -> None:
        await self.update("", 0, self.base_fingerprint)

    async def update(self, weights: str, version: int, fingerprint: str) -> None:
        assert not self.running, f"{self.running} episodes run while the weights change"
        self.version = version
        self.weights = Path(weights).read_text() if weights else self.base_fingerprint
        assert self.weights == fingerprint

    async def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return _score(self.weights, sequences)


class TimedTrainer:
    """Stands where `trainer.group.TrainerGroup` does; its weights are a digest of what it saw."""

    def __init__(self, train_s: float) -> None:
        self.train_s, self.weights = train_s, "base"
        self._aborted = threading.Event()

    def behaviour_logprobs(self, batch: TrainBatch) -> np.ndarray:
        return batch.behaviour

    def train(self, batch: TrainBatch) -> list[dict[str, float]]:
        if self._aborted.wait(self.train_s):
            raise TrainerError("the training was abandoned")
        seen = hashlib.sha256(self.weights.encode())
        for array in (batch.token_ids, batch.behaviour, batch.advantage, batch.offsets):
            seen.update(array.tobytes())
        self.weights = seen.hexdigest()
        return [{"loss": float(batch.advantage.sum())}]

    def save_checkpoint(self, path: Path, extra: dict[str, Any]) -> None:
        beside = staging(path)
        (beside / "weights").write_text(self.weights)
        seal(beside, path, {}, step=extra["version"])

    def load_checkpoint(self, path: Path) -> None:
        verify(path)
        self.weights = (path / "weights").read_text()

    def publish(self, path: Path) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.weights)
        return self.weights

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return _score(self.weights, sequences)

    def abort(self) -> None:
        self._aborted.set()

    def shutdown(self) -> None: ...


@dataclass(slots=True)
class _Pool:
    scheduler: Scheduler

    async def run(
        self, specs: Any, bundles: Path, trace: Level = "full", *more: Any
    ) -> list[EpisodeResult]:
        return await self.scheduler.run(specs, str(bundles), trace, *more)


@dataclass(slots=True)
class _Engine:
    stack: TimedStack

    async def run(
        self, specs: Sequence[EpisodeSpec], bundles: str, trace: Level
    ) -> AsyncIterator[tuple[int, EpisodeResult]]:
        for index, spec in enumerate(specs):
            self.stack.running += 1
            try:
                await asyncio.sleep(self.stack.episode_s)
            finally:
                self.stack.running -= 1
            assert self.stack.version == spec.policy_version
            yield index, _result(spec, self.stack.weights)

    async def alive(self) -> None:
        return

    def kill(self) -> None:
        raise AssertionError("an engine of known delay always answers")


def _result(spec: EpisodeSpec, weights: str) -> EpisodeResult:
    """What the policy does depends on its weights, the harness and the seed alone."""
    rng = np.random.default_rng(
        list(hashlib.sha256(f"{weights}{spec.harness_id}{spec.seed}".encode()).digest())
    )
    mask = np.arange(TOKENS) >= TOKENS // 2
    segment = Segment(
        rng.integers(0, 500, TOKENS).astype(np.int32), mask,
        np.where(mask, -rng.random(TOKENS), 0).astype(np.float32),
        np.where(mask, spec.policy_version, -1).astype(np.int32), 1.0,
    )  # fmt: skip
    success = bool(rng.random() < 0.5)
    return EpisodeResult(
        Trajectory(
            spec.id, spec.task.id, spec.round, spec.role, spec.harness_id, spec.policy_version,
            spec.seed, Outcome("completed"), float(success), success, 1, (segment,),
            Cost(TOKENS // 2, TOKENS // 2, 1), features=dict(spec.task.features),
        )
    )  # fmt: skip


def _score(weights: str, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    value = int.from_bytes(hashlib.sha256(weights.encode()).digest()[:4], "big") / 2**32
    return [[-value] * (len(sequence) - 1) for sequence in sequences]


def play(config: RunConfig, stack: TimedStack) -> float:
    """Run `config` over the stack; seconds."""
    run = RunDir.create(Path(config.runs_dir) / config.name, config, {})
    began = time.monotonic()
    with run, LiveTable(console=Console(file=io.StringIO()), live=False) as live:
        asyncio.run(Loop(run, config, stack, live).go())  # type: ignore[arg-type]
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/smoke.yaml")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--rollout", type=float, default=2.0, help="seconds of a round's rollout")
    parser.add_argument("--train", type=float, default=2.0, help="seconds of a round's training")
    parser.add_argument("--measure", type=float, default=0.2, help="of a held-out measurement")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    each = 8  # episodes of an engine in a round
    heldout = max(1, round(each * options.measure / options.rollout)) * options.engines
    tasks = each * options.engines // 4
    common = [
        "mode=model", f"rounds={options.rounds}", "tasks.samples=4", f"tasks.per_round={tasks}",
        f"environment.options.counts={{evolve: {tasks}, heldout: {heldout}}}",
        f"rollout.workers={options.engines}", f"rollout.concurrency={1}", "buffer.window=1",
        f"policy.engine.replicas={options.engines}",
        f"evaluation={{episodes: {heldout}, final: null}}",
    ]  # fmt: skip
    episode_s = options.rollout / each
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as root:
        for schedule in ("synchronous", "pipelined"):
            settings = [*common, f"schedule={schedule}", f"name={schedule}", f"runs_dir={root}"]
            config = load_config(options.config, settings)
            found[schedule] = play(config, TimedStack(config, episode_s, options.train))
            found[f"{schedule} forecast"] = forecast(config, episode_s, options.train)
    ratio = found["synchronous"] / found["pipelined"]
    if options.json:
        print(json.dumps(found | {"ratio": ratio}))
        return
    for schedule in ("synchronous", "pipelined"):
        print(
            f"{schedule:<12} {found[schedule]:6.2f} s for {options.rounds} rounds and a last "
            f"measurement (forecast {found[f'{schedule} forecast']:.2f} s)"
        )
    print(f"pipelined rounds are {ratio:.2f} times as fast")


def forecast(config: RunConfig, episode_s: float, train_s: float) -> float:
    """Seconds of the run by `coevo simulate`, its last measurement included."""
    engines, n = config.policy.engine.replicas, config.tasks.per_round * config.tasks.samples
    passes = config.trainer.steps_per_round / config.trainer.minibatches + 1 / 3
    speeds = Speeds(
        tokens_per_s=TOKENS / 2 / episode_s, sampled=TOKENS / 2, prompt=TOKENS / 2, spread=0,
        train_tokens_per_s=n * TOKENS * passes / train_s, weight_bytes=0, driver_s=0,
    )  # fmt: skip
    last = config.evaluation.episodes / engines * episode_s
    return simulate(config, engines, speeds).round_s * config.rounds + last


if __name__ == "__main__":
    main()
