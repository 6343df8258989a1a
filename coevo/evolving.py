"""The evolution phase of a round: the recipe's engine over rollouts on the round's own policy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coevo.config import RunConfig
from coevo.evidence import evidence, task_key, write_traces
from coevo.evolution_setup import set_up
from coevo.live import LiveTable
from coevo.rollouts import TaskSource, episode_specs, named, tokens_of
from coevo.rundir import RunDir
from coevo.stack import Stack
from harness.atomic import write_json
from harness.evolve.engine import evolve
from harness.evolve.journal import Journal, digest
from harness.evolve.llm.account import Spent
from harness.evolve.parts import Router
from harness.evolve.records import Episode, EvalRequest
from harness.evolve.state import CandidateReport, EvolutionState
from harness.store import Store
from rollout.buffer import ReplayBuffer
from rollout.trajectory import Role


class EvolutionAborted(RuntimeError):
    """Infrastructure errors left no verdict; the run stops and the round is done again on resume."""


class Evolver:
    """Runs `config.evolution.recipe`, refused here before anything is spent where it cannot run."""

    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        stack: Stack,
        store: Store,
        buffer: ReplayBuffer,
        tasks: TaskSource,
        live: LiveTable,
    ) -> None:
        self.run, self.config, self.stack, self.store = run, config, stack, store
        self.buffer, self.tasks, self.live = buffer, tasks, live
        journal = run.path / "evolution" / "llm.jsonl"
        self.recipe, self.parts, self.llm = set_up(config, str(journal))

    @property
    def router(self) -> Router | None:
        """The recipe's router; None where nothing evolves."""
        return self.parts.router if self.parts else None

    async def close(self) -> None:
        """End the connections to language models."""
        if self.llm is not None:
            await self.llm.close()

    async def evolve(
        self, number: int, state: EvolutionState, version: int, episodes: Sequence[Episode]
    ) -> dict[str, Any]:
        """One round: verdicts on disk, candidates in the store, their rollouts in the buffer."""
        settings = self.config.evolution
        if number < settings.start or (number - settings.start) % settings.every:
            return _result(state.at(number + 1), {"outcome": "off", "reason": "not this round"})
        serving_ids = {v.bundle.id for v in state.variants}
        if episodes and not any(e.harness_id in serving_ids for e in episodes):
            # Rolled out ahead, while the harness was being replaced.
            why = f"no episode is of {state.incumbent.id[:12]}, which serves since the last round"
            return _result(state.at(number + 1), {"outcome": "off", "reason": why})
        tasks = {task_key(t.id): t for t in self.tasks.evolve()}
        batch = self.tasks.batch(number, self.config.tasks.per_round)

        async def evaluate(request: EvalRequest) -> list[Episode]:
            name = f"{request.purpose}-{request.draw}-{digest(request.inputs())[:8]}"
            for bundle in request.bundles:
                self.store.put(bundle)
            harnesses: list[tuple[str, Role]] = [
                (b.id, "incumbent" if b.id in serving_ids else "candidate") for b in request.bundles
            ]
            specs = episode_specs(
                self.config.seed, f"{number:04d}/{name}", number, named(tasks, request.tasks),
                harnesses, version, request.repeats,
                f"round {number}/{request.purpose}/{request.draw}",
            )  # fmt: skip
            self.live.start("evolve", len(specs))
            results = await self.stack.pool.run(
                specs, self.run.bundles, "full", lambda _: self.live.advance("evolve")
            )
            self.live.finish("evolve")
            path = self.run.traces(number, name)
            write_traces(path, results)
            self.buffer.append(number, name, [r.trajectory for r in results])
            ref = path.relative_to(self.run.path)
            return [
                evidence(r, s.task.view.instruction, f"{ref}#{s.id}")
                for s, r in zip(specs, results, strict=True)
            ]

        directory = self.run.evolution(number)
        journal = Journal(directory / "journal.jsonl")
        before = await self._spent(journal, number)
        result = await evolve(
            self.recipe,
            self.parts,
            state.at(number),
            episodes,
            evaluate,
            journal,
            random.Random(f"{self.config.seed}/evolve/{number}"),
            deny=[t.view.instruction for t in batch],
            policy_version=version,
            llm=self.llm,
            max_rollouts=settings.max_rollouts,
        )
        if result.outcome == "aborted":
            raise EvolutionAborted(f"round {number}: {result.reason}")
        for report in result.candidates:
            self._keep(number, report)
        llm = (self.llm.spent - before).to_json() if self.llm is not None else None
        write_json(directory / "verdicts.json", result.to_json() | {"llm": llm})
        for variant in result.state.variants:
            self.store.put(variant.bundle)
        parts = [part for part in self.buffer.parts(number) if part != "incumbent"]
        rolled = [t for part in parts for t in self.buffer.trajectories(number, part)]
        bundles = {report.candidate.bundle.id for report in result.candidates}
        bundles |= {variant.bundle.id for variant in result.state.variants}
        files = [
            *sorted(directory.glob("*.json*")),  # no journal where nothing was paid
            *(self.buffer.manifest(number, part) for part in parts),
            *(self.run.traces(number, part) for part in parts),
            *(self.store.path(id) for id in sorted(bundles)),
        ]
        return _result(result.state, result.summary() | {"llm": llm}, tokens_of(rolled), files)

    async def _spent(self, journal: Journal, number: int) -> Spent:
        """What the language models had taken before this round, also of a round that was killed."""

        if self.llm is None:
            return Spent()
        spent = self.llm.spent

        async def compute() -> dict[str, float]:
            return spent.to_json()

        return Spent(**await journal.once(f"{number}/llm-before", None, compute))

    def _keep(self, number: int, report: CandidateReport) -> None:
        """A candidate's bundle and its line of the lineage, once."""
        candidate = report.candidate
        self.store.add(
            candidate.bundle,
            parents=(candidate.parent,),
            edits=candidate.edits,
            source=candidate.source,
            round=number,
            verdict=report.verdict.decision,
            note="; ".join(report.verdict.reasons)[:500],
        )


def _result(
    state: EvolutionState,
    summary: dict[str, Any],
    tokens: Sequence[int] = (0, 0),
    files: Sequence[Path] = (),
) -> dict[str, Any]:
    return {
        "state": state.to_json(), "summary": summary, "tokens": list(tokens), "files": files
    }  # fmt: skip
