"""A run's control plane on a virtual clock: its scheduler and phase order, engines of given speed.

What runs is the loop's own code: `Rounds` orders the phases and `Scheduler` deals, waits for and
counts the episodes. Replaced are the worker (an episode is its tokens over the speed of its
slot), the trainer (tokens over speed) and the weights (bytes over bandwidth). Not modelled: prefill,
a slot that gets faster when the batch is small, failures, and the evolver's own language model but
for `evolve_s`.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from coevo import virtual_clock
from coevo.config import RunConfig
from coevo.errors import InputError
from coevo.schedule import Rounds
from harness.events import TaskView
from harness.trace import Level
from rollout.episode import EpisodeResult
from rollout.logs import Said
from rollout.scheduler import Scheduler
from rollout.spec import EpisodeSpec, derive_seed
from rollout.task import Task
from rollout.trajectory import Cost, Outcome, Role, Trajectory

TOKEN_BYTES = 4 + 1 + 4 + 4
"""Of the buffer, a token: id, loss mask, engine log-prob, version. The trainer's log-prob adds 4."""

BACKWARD = 3
"""Work of a training token over that of one forward pass (forward 1, backward 2)."""

_TASK = Task("simulated", "simulated", "evolve", TaskView("simulated", "", ()))


class SimulationError(InputError):
    """What is asked for cannot be simulated, or not be run."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """What the parts are assumed to do.

    tokens_per_s: sampled by one engine with all slots in use. train_tokens_per_s: trained (forward
    and backward) by all ranks of the configuration. sampled, prompt: tokens of an episode; sampled is
    a mean. spread: sigma of the log-normal of sampled (0: all alike). weight_bytes: a publication.
    publish_bytes_per_s: of the file system, shared by all engines that read, or of a broadcast that
    all engines hear at once (trainer.publish collective). driver_s: driver's own work an episode,
    one at a time. buffer_bytes_per_s: token data appended to the replay buffer, by the driver too. evolve_s, evolve_episodes: of one evolution: time at its language model, and
    candidate episodes after it.
    """

    tokens_per_s: float = 2000.0
    train_tokens_per_s: float = 10_000.0
    sampled: float = 512.0
    prompt: float = 1024.0
    spread: float = 0.5
    weight_bytes: float = 2e9
    publish_bytes_per_s: float = 2e9
    driver_s: float = 0.008
    buffer_bytes_per_s: float = 2e8
    evolve_s: float = 0.0
    evolve_episodes: int = 0

    def __post_init__(self) -> None:
        for name in (
            "tokens_per_s", "train_tokens_per_s", "sampled", "publish_bytes_per_s",
            "buffer_bytes_per_s",
        ):  # fmt: skip
            if not 0 < getattr(self, name) < math.inf:
                raise SimulationError(
                    f"simulate: {name} is {getattr(self, name)}; expected above 0"
                )
        for name in (
            "prompt", "spread", "weight_bytes", "driver_s", "evolve_s", "evolve_episodes",
        ):  # fmt: skip
            if not 0 <= getattr(self, name) < math.inf:
                raise SimulationError(
                    f"simulate: {name} is {getattr(self, name)}; expected 0 or more"
                )


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one number of engines. Times in virtual seconds, a mean over the rounds; shares in 0..1.

    engine_idle: share of the rounds in which an engine has no episode, a mean over engines.
    staleness: policy versions between sampling and training. buffer_bytes: token data of a full
    window. driver_busy: share of the rounds in which the driver works.
    """

    engines: int
    episodes: int
    round_s: float
    rollout_s: float
    train_s: float
    publish_s: float
    engine_idle: float
    trainer_idle: float
    driver_busy: float
    staleness_mean: float
    staleness_max: int
    buffer_bytes: int


def simulate(
    config: RunConfig, engines: int, speeds: Speeds, weak: bool = False, rounds: int | None = None
) -> Forecast:
    """`rounds` rounds (None: the configuration's) with `engines` engines.

    Each engine serves its share of the configured episode slots (rollout.workers x concurrency /
    policy.engine.replicas), at most max_num_seqs. weak: tasks a round, buffer.max_trajectories and
    the trainer grow with the engines, from what the configuration gives one replica.
    """
    if engines < 1:
        raise SimulationError(f"simulate: {engines} engines; expected at least 1")
    return virtual_clock.run(_Simulation(config, engines, speeds, weak).go(rounds or config.rounds))


class _Driver:
    """One thread: takes what it is given, one after another."""

    def __init__(self, cost: float) -> None:
        self.cost, self.busy, self._free = cost, 0.0, 0.0

    def handle(self, now: float) -> float:
        """Queue an episode that ended at `now`; when it is dealt with."""
        self._free = max(now, self._free) + self.cost
        self.busy += self.cost
        return self._free

    async def work(self, seconds: float) -> None:
        """Do something at once that keeps it from all else."""
        now = asyncio.get_running_loop().time()
        self._free = max(now, self._free) + seconds
        self.busy += seconds
        await asyncio.sleep(self._free - now)


class _Worker:
    """An engine with its episodes: `rollout.scheduler.Worker`."""

    def __init__(self, slots: int, speeds: Speeds, driver: _Driver) -> None:
        self.slots, self.driver, self.busy = slots, driver, 0.0
        self._speeds = speeds

    async def run(
        self, specs: Sequence[EpisodeSpec], bundles: str, trace: Level
    ) -> AsyncIterator[tuple[int, EpisodeResult]]:
        clock = asyncio.get_running_loop().time
        began = clock()
        free = [began] * min(self.slots, len(specs))
        ends: list[tuple[float, int, int]] = []
        for index, spec in enumerate(specs):
            tokens = _sampled(spec.seed, self._speeds)
            end = free[0] + tokens * self.slots / self._speeds.tokens_per_s
            heapq.heapreplace(free, end)
            ends.append((end, index, tokens))
        self.busy += max(free) - began
        dealt = began
        for end, index, tokens in sorted(ends):
            if (wait := end - clock()) > 0:
                await asyncio.sleep(wait)
            dealt = self.driver.handle(end)
            yield index, _result(specs[index], tokens, round(self._speeds.prompt))
        if (wait := dealt - clock()) > 0:  # engines go on meanwhile, the phase does not
            await asyncio.sleep(wait)

    async def alive(self) -> Sequence[Said]:
        return ()

    def kill(self) -> None:
        raise AssertionError("a simulated worker always answers")


class _Rolled(NamedTuple):
    """Of a round: the version that sampled it, its episodes, their tokens."""

    version: int
    episodes: int
    tokens: int


class _Simulation:
    """`coevo.schedule.Phases` that only take their time."""

    def __init__(self, config: RunConfig, engines: int, speeds: Speeds, weak: bool) -> None:
        self.config, self.engines, self.speeds = config, engines, speeds
        self.scale = engines / config.policy.engine.replicas if weak else 1.0
        slots = config.rollout.workers * config.rollout.concurrency / config.policy.engine.replicas
        self.slots = max(1, min(math.ceil(slots), config.policy.engine.max_num_seqs))
        self.driver = _Driver(speeds.driver_s)
        self.workers: list[_Worker] = []
        self.scheduler = Scheduler(
            config.rollout.model_copy(update={"workers": engines}), self._spawn
        )
        self.most = round(config.buffer.max_trajectories * max(1.0, self.scale))
        if self._episodes > self.most:
            raise SimulationError(
                f"simulate: a round has {self._episodes} episodes, more than "
                f"buffer.max_trajectories {self.most}; raise it"
            )
        self.rolled: dict[int, _Rolled] = {}
        self.version = 0
        self.ages: list[tuple[int, int]] = []  # (age, episodes) of each part that trained
        self.buffer_bytes = 0

    def _spawn(self) -> _Worker:
        self.workers.append(_Worker(self.slots, self.speeds, self.driver))
        return self.workers[-1]

    async def go(self, rounds: int) -> Forecast:
        clock = asyncio.get_running_loop().time
        played, publish_s = Rounds(self, rounds, self.config.schedule, self.config.colocated), 0.0
        rolled = trained = 0.0
        for number in range(rounds):
            found = await played.play(number)
            rolled += found.rolled["wall"]
            trained += found.trained["wall"]
            if found.trained["wall"]:
                self.version += 1
                publish_s += self._publish_s()
                await asyncio.sleep(self._publish_s())
        total = clock()
        n = sum(count for _, count in self.ages)
        return Forecast(
            engines=self.engines,
            episodes=self._episodes,
            round_s=total / rounds,
            rollout_s=rolled / rounds,
            train_s=trained / rounds,
            publish_s=publish_s / rounds,
            engine_idle=1 - sum(w.busy for w in self.workers) / (total * self.engines),
            trainer_idle=1 - trained / total,
            driver_busy=self.driver.busy / total,
            staleness_mean=sum(a * c for a, c in self.ages) / n if n else 0.0,
            staleness_max=max((a for a, _ in self.ages), default=0),
            buffer_bytes=self.buffer_bytes,
        )

    @property
    def _episodes(self) -> int:
        return max(1, round(self.config.tasks.per_round * self.scale)) * self.config.tasks.samples

    async def measure(self, number: int) -> dict[str, Any]:
        evaluation = self.config.evaluation
        if number and number % evaluation.every:
            return {"wall": 0.0}
        n = evaluation.episodes if number or evaluation.final is None else evaluation.final
        return await self._timed(self._roll(number, "heldout", n * len(evaluation.splits)))

    async def rollout(self, number: int) -> dict[str, Any]:
        version = self.version

        async def roll() -> None:
            results = await self._roll(number, "incumbent", self._episodes)
            costs = [r.trajectory.cost for r in results]
            tokens = sum(c.prompt_tokens + c.sampled_tokens for c in costs)
            self.rolled[number] = _Rolled(version, len(results), tokens)
            await self.driver.work(TOKEN_BYTES * tokens / self.speeds.buffer_bytes_per_s)

        return await self._timed(roll())

    async def evolve(self, number: int, rolled: dict[str, Any]) -> dict[str, Any]:
        evolution = self.config.evolution
        due = number >= evolution.start and (number - evolution.start) % evolution.every == 0

        async def think() -> None:
            await asyncio.sleep(self.speeds.evolve_s)
            if n := self.speeds.evolve_episodes:
                await self._roll(number, "candidate", n)

        return await self._timed(think()) if self.config.evolves and due else {"wall": 0.0}

    async def train(self, number: int) -> dict[str, Any]:
        config = self.config
        window = self._window(number)
        size = TOKEN_BYTES + (4 if config.buffer.trainer_logprobs else 0)
        self.buffer_bytes = max(self.buffer_bytes, size * sum(item.tokens for item in window))
        if not config.trains or len(window) < config.buffer.min_rounds:
            return {"wall": 0.0}
        tokens = sum(item.tokens for item in window)
        work = tokens * config.trainer.steps_per_round / config.trainer.minibatches
        if config.buffer.trainer_logprobs:
            work += self.rolled[number].tokens / BACKWARD
        self.ages += [(self.version - item.version, item.episodes) for item in window]
        return await self._timed(
            asyncio.sleep(work / (self.speeds.train_tokens_per_s * self.scale))
        )

    def _window(self, number: int) -> list[_Rolled]:
        """Newest first, as the replay buffer bounds it."""
        rounds = min(self.config.buffer.window, self.most // self._episodes, number + 1)
        return [self.rolled[n] for n in range(number, number - rounds, -1)]

    async def _timed(self, phase: Coroutine[Any, Any, Any]) -> dict[str, Any]:
        clock = asyncio.get_running_loop().time
        began = clock()
        await phase
        return {"wall": clock() - began}

    def _publish_s(self) -> float:
        readers = 1 if self.config.trainer.publish == "collective" else 1 + self.engines
        return self.speeds.weight_bytes * readers / self.speeds.publish_bytes_per_s

    async def _roll(self, number: int, role: Role, n: int) -> list[EpisodeResult]:
        specs = [
            EpisodeSpec(
                f"{number}/{role}/{i}", _TASK, "", role, number, self.version,
                derive_seed(self.config.seed, number, role, i),
            )
            for i in range(n)
        ]  # fmt: skip
        return await self.scheduler.run(specs, "", "full")


def _sampled(seed: int, speeds: Speeds) -> int:
    """Tokens of an episode: log-normal with mean `sampled`."""
    sigma = speeds.spread
    draw = random.Random(seed).lognormvariate(-sigma * sigma / 2, sigma) if sigma else 1.0
    return max(1, round(speeds.sampled * draw))


def _result(spec: EpisodeSpec, sampled: int, prompt: int) -> EpisodeResult:
    return EpisodeResult(
        Trajectory(
            spec.id, spec.task.id, spec.round, spec.role, spec.harness_id, spec.policy_version,
            spec.seed, Outcome("completed"), 0.0, False, 1, (), Cost(prompt, sampled),
        )
    )  # fmt: skip
