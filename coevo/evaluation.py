"""The held-out measurement: sealed tasks, fixed seeds, the same for every round and arm."""

from __future__ import annotations

import json
from typing import Any

from coevo.config import RunConfig
from coevo.live import LiveTable
from coevo.records import EpisodeResult, Evaluation
from coevo.rollouts import TaskSource, episode_specs, tokens_of
from coevo.rundir import RunDir, write_json
from coevo.stack import Stack
from rollout.trajectory import Trajectory


class Evaluator:
    """Measures (harness, policy) pairs. A pair that was measured is not rolled out again: with the
    same tasks and seeds it would give the same episodes."""

    def __init__(
        self, run: RunDir, config: RunConfig, stack: Stack, tasks: TaskSource, live: LiveTable
    ) -> None:
        self.run, self.config, self.stack, self.tasks, self.live = run, config, stack, tasks, live
        self._known: dict[tuple[str, int, str], Evaluation] = {}
        for split in config.evaluation.splits:
            for file in sorted((run.path / split).glob("*.json")):
                self._remember(split, Evaluation.from_json(json.loads(file.read_text()), str(file)))

    async def measure(
        self, number: int, harness_id: str, version: int, first_or_last: bool
    ) -> dict[str, Any]:
        """Write one evaluation a split; their results and the tokens spent."""
        settings = self.config.evaluation
        n = (settings.final or settings.episodes) if first_or_last else settings.episodes
        results: dict[str, Any] = {}
        tokens = [0, 0]
        for split in settings.splits:
            known = self._known.get((harness_id, version, split))
            if known is not None and len(known.episodes) >= n:
                evaluation = known.model_copy(update={"round": number})
            else:
                # Under M_0 another arm of the same seed may have measured just this.
                shared = (self.config.seed, harness_id, split, n) if version == 0 else None
                found = self.stack.measured.get(shared)
                if found is None:
                    found = await self._roll(split, n, number, harness_id, version)
                if shared is not None:
                    self.stack.measured[shared] = found
                evaluation, spent = found
                evaluation = evaluation.model_copy(update={"round": number})
                tokens = [a + b for a, b in zip(tokens, spent, strict=True)]
            write_json(self.run.evaluation(number, split), evaluation.to_json())
            self._remember(split, evaluation)
            results[split] = evaluation.result.model_dump(mode="json")
        return {"splits": results, "tokens": tokens}

    def _remember(self, split: str, evaluation: Evaluation) -> None:
        key = (evaluation.harness_id, evaluation.policy_version, split)
        known = self._known.get(key)
        if known is None or len(known.episodes) < len(evaluation.episodes):
            self._known[key] = evaluation

    async def _roll(
        self, split: Any, n: int, number: int, harness_id: str, version: int
    ) -> tuple[Evaluation, list[int]]:
        specs = episode_specs(
            self.config.seed, f"{number:04d}/{split}", number, self.tasks.sealed(split, n),
            [(harness_id, "heldout")], version, 1, f"measure {split}",
        )  # fmt: skip
        self.live.start("heldout", len(specs))
        rolled = await self.stack.pool.run(
            specs, self.run.bundles, "off", lambda _: self.live.advance("heldout")
        )
        self.live.finish("heldout")
        trajectories = [r.trajectory for r in rolled]
        evaluation = Evaluation(
            round=number,
            harness_id=harness_id,
            policy_version=version,
            episodes=tuple(_record(t) for t in trajectories),
        )
        return evaluation, tokens_of(trajectories)


def _record(trajectory: Trajectory) -> EpisodeResult:
    return EpisodeResult(
        task_id=trajectory.task_id,
        seed=trajectory.seed,
        success=trajectory.success,
        reward=trajectory.reward,
        steps=trajectory.steps,
        outcome=trajectory.outcome.kind,
        features=dict(trajectory.features),
    )
