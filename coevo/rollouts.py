"""Which episodes a phase rolls out: tasks, seeds and ids, all functions of the run's seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coevo.records import RolloutRecord
from harness.bundle import Bundle
from harness.evolve.parts import Router, Variant
from harness.evolve.routing import Routing
from rollout.config import EnvironmentConfig
from rollout.envs import make_env
from rollout.phase import phase_stats
from rollout.spec import EpisodeSpec, derive_seed
from rollout.task import SealedRead, SealedSplitError, Split, Task, TaskSplits
from rollout.trajectory import Role, Trajectory


def _not_journaled(read: SealedRead) -> None:
    raise SealedSplitError(
        f"{read.reader} reads split {read.split!r}, but this task source journals no sealed reads; "
        "make it with `on_read`"
    )


class TaskSource:
    """The environment's tasks. Splits that are measured are read by the holder of `splits.key()`.

    on_read: keeps the journal of sealed reads; without it none is possible.
    """

    def __init__(
        self,
        environment: EnvironmentConfig,
        seed: int,
        on_read: Callable[[SealedRead], None] = _not_journaled,
    ) -> None:
        self.splits = TaskSplits(make_env(environment.name, **environment.options).tasks, on_read)
        self._seed = seed
        self._evolve = list(self.splits.tasks("evolve"))

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

    def evolve(self) -> tuple[Task, ...]:
        """All tasks that evolution and training may use."""
        return tuple(self._evolve)

    def _lap(self, lap: int) -> list[Task]:
        order = list(self._evolve)
        random.Random(f"{self._seed}/tasks/{lap}").shuffle(order)
        return order

    def check_size(self, split: Split, n: int) -> None:
        """Raises ValueError where a split has fewer than the `n` tasks that are to be measured."""
        size = self.splits.size(split)
        if n > size:
            raise ValueError(
                f"evaluation asks for {n} episodes of split {split!r}, which has {size} "
                f"tasks; lower evaluation.episodes or raise environment.options.counts.{split}"
            )


def named(tasks: Mapping[str, Task], keys: Iterable[str]) -> list[Task]:
    """The tasks of these keys. Raises SealedSplitError for a key of no task that is given: evolution
    rolls out on tasks of the evolve split and on no others."""
    found = []
    for key in keys:
        if key not in tasks:
            raise SealedSplitError(
                f"evolution asked for rollouts of task {key!r}, which is none of the "
                f"{len(tasks)} that it may use; a part may name only the tasks of the episodes that "
                "it was given"
            )
        found.append(tasks[key])
    return found


@dataclass(frozen=True, slots=True)
class Serving:
    """Which variant serves which task. router: None where nothing evolves."""

    variants: tuple[Variant, ...]
    routing: Routing = field(default_factory=Routing)
    router: Router | None = None

    @property
    def main(self) -> str:
        """Harness id of the main variant."""
        return self.variants[0].bundle.id

    @property
    def inputs(self) -> Any:
        """What identifies it in a journal: the harness id where one serves all."""
        if len(self.variants) == 1:
            return self.main
        return [
            [v.name, v.bundle.id, dict(self.routing.counts.get(v.name, {}))] for v in self.variants
        ]

    def bundle(self, name: str) -> Bundle:
        """The harness of the variant of that name."""
        return next(v.bundle for v in self.variants if v.name == name)

    def of(self, task: Task) -> Variant:
        """The variant that serves the task."""
        if self.router is None:
            return self.variants[0]
        return self.variants[self.router.route(self.variants, self.routing, task.features)]

    def mix(self, tasks: Iterable[Task]) -> dict[str, list[Task]]:
        """variant name -> the tasks that it serves; {} where one serves all."""
        if len(self.variants) == 1:
            return {}
        out: dict[str, list[Task]] = {v.name: [] for v in self.variants}
        for task in tasks:
            out[self.of(task).name].append(task)
        return out


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


def routed_specs(
    run_seed: int,
    part: str,
    round: int,
    tasks: Iterable[Task],
    serving: Serving,
    role: Role,
    policy_version: int,
    repeats: int,
    draw: str,
) -> list[EpisodeSpec]:
    """As `episode_specs`, each task under the variant that serves it."""
    return [
        spec
        for task in tasks
        for spec in episode_specs(
            run_seed, part, round, [task], [(serving.of(task).bundle.id, role)], policy_version,
            repeats, draw,
        )
    ]  # fmt: skip


def rollout_record(asked: Sequence[Trajectory], finished: Sequence[Trajectory]) -> RolloutRecord:
    """asked: all episodes of the phase; finished: in the order in which they ended."""
    stats = phase_stats(asked, finished)
    return RolloutRecord(
        outcomes=dict(stats.outcomes),
        length_bias={f"{share:g}": round(bias, 4) for share, bias in stats.length_bias.items()},
    )


def tokens_of(trajectories: Sequence[Trajectory]) -> list[int]:
    """[prompt, sampled] tokens of the episodes."""
    return [
        sum(t.cost.prompt_tokens for t in trajectories),
        sum(t.cost.sampled_tokens for t in trajectories),
    ]
