"""Which episodes a phase rolls out: tasks, seeds and ids, all functions of the run's seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from rollout.config import EnvironmentConfig
from rollout.envs import make_env
from rollout.spec import EpisodeSpec, derive_seed
from rollout.task import Split, Task
from rollout.trajectory import Role, Trajectory


class TaskSource:
    """The environment's tasks. Held-out splits are read through `sealed` only."""

    def __init__(self, environment: EnvironmentConfig, seed: int) -> None:
        self._env = make_env(environment.name, **environment.options)
        self._seed = seed
        self._evolve = list(self._env.tasks("evolve"))

    def batch(self, round: int, size: int) -> list[Task]:
        """The round's tasks: a seeded order of the evolve split, gone through again and again."""
        n = len(self._evolve)
        if size > n:
            raise ValueError(
                f"tasks.per_round is {size} but the evolve split has {n} tasks; lower it or raise "
                "environment.options.counts.evolve"
            )
        chosen: list[Task] = []
        for position in range(round * size, (round + 1) * size):
            lap, place = divmod(position, n)
            chosen.append(self._lap(lap)[place])
        # A batch that spans two laps may meet a task twice; one group a task and round.
        return list({task.id: task for task in chosen}.values())

    def _lap(self, lap: int) -> list[Task]:
        order = list(self._evolve)
        random.Random(f"{self._seed}/tasks/{lap}").shuffle(order)
        return order

    def sealed(self, split: Split, n: int) -> list[Task]:
        """The first `n` tasks of a split that is measured, never trained on."""
        tasks = self._env.tasks(split)
        if n > len(tasks):
            raise ValueError(
                f"evaluation asks for {n} episodes of split {split!r}, which has {len(tasks)} "
                f"tasks; lower evaluation.episodes or raise environment.options.counts.{split}"
            )
        return list(tasks[:n])


def episode_specs(
    run_seed: int,
    part: str,
    round: int,
    tasks: Iterable[Task],
    harnesses: Sequence[tuple[str, Role]],
    policy_version: int,
    repeats: int,
    draw: str,
) -> list[EpisodeSpec]:
    """Every harness on every task with the same `repeats` seeds, interleaved by harness.

    draw: names the seeds' family; equal (draw, task, repeat) give equal seeds, whatever harness.
    """
    return [
        EpisodeSpec(
            id=f"{part}/{task.id}/{harness_id[:12]}/{repeat}",
            task=task,
            harness_id=harness_id,
            role=role,
            round=round,
            policy_version=policy_version,
            seed=derive_seed(run_seed, draw, task.id, repeat),
        )
        for task in tasks
        for repeat in range(repeats)
        for harness_id, role in harnesses
    ]


def tokens_of(trajectories: Sequence[Trajectory]) -> list[int]:
    """[prompt, sampled] tokens of the episodes."""
    return [
        sum(t.cost.prompt_tokens for t in trajectories),
        sum(t.cost.sampled_tokens for t in trajectories),
    ]
