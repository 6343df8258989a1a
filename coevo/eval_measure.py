"""Measures (harness, policy) pairs over one started machinery: the episodes of a run's evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coevo.config import RunConfig
from coevo.eval_pairs import PolicyFile
from coevo.evaluation import episode_result
from coevo.live import LiveTable
from coevo.records import Evaluation
from coevo.rollouts import Serving, TaskSource, routed_specs, tokens_of
from coevo.stack import Stack
from harness.bundle import Bundle
from harness.evolve.parts import Variant
from rollout.task import Split


class PairMeasurer:
    """Rolls a harness out under a policy on the first tasks of a split, with the seeds that a run of
    this configuration uses: a pair that the run measured gives the same episodes again.

    bundles: directory of the harnesses, one a harness id. reader: who is journaled as reading.
    """

    def __init__(
        self,
        config: RunConfig,
        stack: Stack,
        tasks: TaskSource,
        bundles: Path,
        live: LiveTable,
        reader: str,
    ) -> None:
        self.config, self.stack, self.tasks, self.live = config, stack, tasks, live
        self.bundles, self.reader = bundles, reader
        self._key = tasks.splits.key()
        self._served: str | None = None

    async def measure(
        self, harness: Bundle, policy: PolicyFile, split: Split, n: int, about: Mapping[str, Any]
    ) -> tuple[Evaluation, list[int]]:
        """The evaluation and the [prompt, sampled] tokens that it took. about: journaled with it.

        Raises SplitError where the split has fewer than n tasks."""
        await self._serve(policy)
        told = {"harness_id": harness.id, "policy": policy.fingerprint, **about}
        if split == "evolve":
            tasks = self.tasks.evolve()[:n]
        else:
            tasks = self.tasks.splits.sealed(split, n, self._key, self.reader, told)
        serving = Serving((Variant("main", harness),))
        specs = routed_specs(
            self.config.seed, f"{self.reader}/{policy.fingerprint[:12]}/{split}", 0, tasks, serving,
            "heldout", policy.version, 1, f"measure {split}",
        )  # fmt: skip
        self.live.start("heldout", len(specs))
        rolled = await self.stack.pool.run(
            specs, self.bundles, "off", lambda _: self.live.advance("heldout")
        )
        self.live.finish("heldout")
        trajectories = [r.trajectory for r in rolled]
        evaluation = Evaluation(
            round=0,
            harness_id=harness.id,
            policy_version=policy.version,
            episodes=tuple(episode_result(t) for t in trajectories),
        )
        return evaluation, tokens_of(trajectories)

    async def _serve(self, policy: PolicyFile) -> None:
        if policy.fingerprint == self._served:
            return
        if policy.weights is None:
            await self.stack.serve_base()
        else:
            await self.stack.policy.update(str(policy.weights), policy.version, policy.fingerprint)
        self._served = policy.fingerprint
