"""The held-out measurement: sealed tasks, fixed seeds, the same for every round and arm."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from coevo.config import RunConfig
from coevo.live import LiveTable
from coevo.records import EpisodeResult, Evaluation, ServedTasks
from coevo.rollouts import Serving, TaskSource, routed_specs, tokens_of
from coevo.rundir import RunDir
from coevo.stack import Stack
from harness.atomic import write_json
from rollout.task import Task
from rollout.trajectory import Trajectory


class Evaluator:
    """Measures (harness, policy) pairs; where several variants serve, each task runs under its own.
    What was measured is not rolled out again: the same harnesses on the same tasks and seeds would
    give the same episodes."""

    def __init__(
        self, run: RunDir, config: RunConfig, stack: Stack, tasks: TaskSource, live: LiveTable
    ) -> None:
        self.run, self.config, self.stack, self.tasks, self.live = run, config, stack, tasks, live
        self._key = tasks.splits.key()
        self._known: dict[tuple[int, str], list[Evaluation]] = {}
        for split in config.evaluation.sizes(True):
            for file in sorted((run.path / split).glob("*.json")):
                self._remember(split, Evaluation.from_json(json.loads(file.read_text()), str(file)))

    async def measure(
        self, number: int, serving: Serving, version: int, first_or_last: bool
    ) -> dict[str, Any]:
        """Write one evaluation a split; their results and the tokens spent."""
        repeats = self.config.evaluation.repeats
        results: dict[str, Any] = {}
        tokens = [0, 0]
        files = []
        for split, n in self.config.evaluation.sizes(first_or_last).items():
            wanted = self._wanted(split, n, number, serving, version)
            known = self._find(wanted, version, split, number)
            if known is not None:
                evaluation = known.model_copy(update={"round": number})
            else:
                # Under M_0 another arm of the same seed may have measured just this.
                shared = (self.config.seed, wanted, repeats, split) if version == 0 else None
                found = self.stack.measured.get(shared)
                if found is None:
                    found = await self._roll(split, n, number, serving, version, repeats)
                if shared is not None:
                    self.stack.measured[shared] = found
                evaluation, spent = found
                evaluation = evaluation.model_copy(update={"round": number})
                tokens = [a + b for a, b in zip(tokens, spent, strict=True)]
            write_json(self.run.evaluation(number, split), evaluation.to_json())
            self._remember(split, evaluation)
            files.append(self.run.evaluation(number, split))
            results[split] = evaluation.result.model_dump(mode="json")
        return {"splits": results, "tokens": tokens, "files": files}

    async def repeat(self, serving: Serving, version: int, number: int) -> dict[str, Any]:
        """The held-out tasks of the last evaluation once more, under the seeds of repeat `number` (1
        or more): their episodes and the tokens spent."""
        n = self.config.evaluation.final or self.config.evaluation.episodes
        evaluation, tokens = await self._roll("heldout", n, 0, serving, version, 1, number)
        return {"episodes": evaluation.to_json()["episodes"], "tokens": tokens}

    def _remember(self, split: str, evaluation: Evaluation) -> None:
        self._known.setdefault((evaluation.policy_version, split), []).append(evaluation)

    def _find(
        self, wanted: tuple[str, ...], version: int, split: str, number: int
    ) -> Evaluation | None:
        """The longest evaluation whose first episodes ran under these harnesses. One of round `number`
        itself is of an attempt that was killed: what it had spent is not known."""
        found = [
            evaluation
            for evaluation in self._known.get((version, split), ())
            if evaluation.round != number
            and evaluation.harnesses()[: len(wanted)] == wanted
            and _repeats(evaluation) == self.config.evaluation.repeats
        ]
        return max(found, key=lambda evaluation: len(evaluation.episodes), default=None)

    def _wanted(
        self, split: Any, n: int, number: int, serving: Serving, version: int
    ) -> tuple[str, ...]:
        """The harness id of each episode on the split's first n tasks."""
        repeats = self.config.evaluation.repeats
        if len(serving.variants) == 1:
            return (serving.main,) * n * repeats
        tasks = self._sealed(split, n, number, serving, version, 0)
        return tuple(serving.of(task).bundle.id for task in tasks for _ in range(repeats))

    def _sealed(
        self, split: Any, n: int, number: int, serving: Serving, version: int, repeat: int
    ) -> Sequence[Task]:
        about = {
            "round": number, "harness_id": serving.main, "policy_version": version, "repeat": repeat
        }  # fmt: skip
        return self.tasks.splits.sealed(split, n, self._key, "evaluator", about)

    async def _roll(
        self,
        split: Any,
        n: int,
        number: int,
        serving: Serving,
        version: int,
        repeats: int,
        repeat: int = 0,
    ) -> tuple[Evaluation, list[int]]:
        again = f" {repeat}" if repeat else ""
        tasks = self._sealed(split, n, number, serving, version, repeat)
        specs = routed_specs(
            self.config.seed, f"{number:04d}/{split}{again}", number, tasks, serving, "heldout",
            version, repeats, f"measure {split}{again}",
        )  # fmt: skip
        self.live.start("heldout", len(specs))
        rolled = await self.stack.pool.run(
            specs, self.run.bundles, "off", lambda _: self.live.advance("heldout")
        )
        self.live.finish("heldout")
        trajectories = [r.trajectory for r in rolled]
        evaluation = Evaluation(
            round=number,
            harness_id=serving.main,
            policy_version=version,
            episodes=tuple(episode_result(t) for t in trajectories),
            variants={
                name: ServedTasks(
                    harness_id=serving.bundle(name).id, task_ids=tuple(t.id for t in own)
                )
                for name, own in serving.mix(tasks).items()
            },
        )
        return evaluation, tokens_of(trajectories)


def _repeats(evaluation: Evaluation) -> int:
    return len(evaluation.episodes) // len({e.task_id for e in evaluation.episodes})


def episode_result(trajectory: Trajectory) -> EpisodeResult:
    """What an evaluation keeps of an episode."""
    return EpisodeResult(
        task_id=trajectory.task_id,
        seed=trajectory.seed,
        success=trajectory.success,
        reward=trajectory.reward,
        steps=trajectory.steps,
        outcome=trajectory.outcome.kind,
        features=dict(trajectory.features),
    )
