"""The loop: roll out, evolve the harness and train the model on the same buffer, measure, commit.

Source: HarnessX §5.1, with the held-out measurement added. Round t: measure (M_t, H_t) on sealed
tasks; roll (M_t, H_t) out; evolve H_t and train M_t side by side on what the buffer holds then;
publish M_{t+1}; commit. Every phase is journaled with its inputs, so a killed run goes through the
journal and continues where it stopped, to the same result.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from typing import Any

from coevo import events, logs
from coevo.base_policy import keep_base
from coevo.config import RunConfig
from coevo.evaluation import Evaluator
from coevo.evidence import evidence, write_traces
from coevo.evolving import Evolver
from coevo.integrity import seal, write_summed
from coevo.live import LiveTable
from coevo.metrics import MetricsLog, TensorBoard
from coevo.records import RoundRecord, Summary
from coevo.rollouts import Serving, TaskSource, rollout_record, routed_specs, tokens_of
from coevo.round_records import evolve_result, round_record, run_summary
from coevo.rundir import RunDir
from coevo.schedule import LEAD, Rounds
from coevo.sealed import SealedReads
from coevo.sinks import Sinks
from coevo.stack import Stack
from coevo.stop import STOP
from coevo.training import Learner
from harness.atomic import write_json
from harness.bundle import load
from harness.evolve.journal import Journal
from harness.evolve.records import Episode, decode, encode
from harness.evolve.state import EvolutionState
from harness.store import Store
from rollout.buffer import ReplayBuffer
from rollout.episode import EpisodeResult
from rollout.scheduler import Admission
from rollout.staleness import StalenessManager
from rollout.trajectory import Trajectory

_log = logging.getLogger(__name__)


class Loop:
    """One run over a started `Stack`. The run directory must be held (`with RunDir`)."""

    def __init__(self, run: RunDir, config: RunConfig, stack: Stack, live: LiveTable) -> None:
        stack.check_fits(config)
        self.run, self.config, self.stack, self.live = run, config, stack, live
        if stack.model is not None:
            keep_base(run, stack.base_fingerprint, stack.model)
        reads = SealedReads(run.path / "sealed_reads.jsonl")
        self.tasks = TaskSource(config.environment, config.seed, reads.add)
        self.store = Store(run.store)
        self.buffer = ReplayBuffer(
            run.path,
            config.buffer.window,
            config.buffer.max_trajectories,
            config.buffer.keep_rounds,
            LEAD[config.schedule],
        )
        self.journal = Journal(run.path / "journal.jsonl")
        self.evaluator = Evaluator(run, config, stack, self.tasks, live)
        self.evolver = Evolver(run, config, stack, self.store, self.buffer, self.tasks, live)
        self.learner = Learner(run, config, stack, self.buffer, live)
        self.state = self._first_state()
        self.version = 0
        self.fingerprint = stack.base_fingerprint
        self.served: int | None = None
        self._serving = asyncio.Lock()  # phases that start side by side publish once
        self._rounds = Rounds(self, config.rounds, config.schedule, config.colocated)
        self._lead = LEAD[config.schedule]
        self._consumed = 0  # rounds whose training has ended

    def _first_state(self) -> EvolutionState:
        first = load(self.config.harness.bundle)
        if first.id not in self.store:
            self.store.add(first, source="seed", round=0, note="H0")
        if self.store.pointer("incumbent") is None:
            self.store.move("incumbent", first.id, round=0)
        return EvolutionState.start(first)

    async def go(self) -> Summary:
        """All rounds that are left, then the last measurement."""
        rounds: list[RoundRecord] = []
        with MetricsLog(self.run.path / "metrics.jsonl") as log:
            board = TensorBoard(self.run.path / "tensorboard", len(log.records))
            sinks = Sinks(self.config, self.run.path, self.live.console.print)
            try:
                for number in range(self.config.rounds):
                    record = await self.round(number)
                    if log.append(record):
                        board.write(record)
                    sinks.send(log.records)
                    self.live.add(record)
                    rounds.append(record)
                last = await self.measure(self.config.rounds)
            finally:
                board.close()
                sinks.close()
                self.learner.close()
                await self.evolver.close()
        summary = run_summary(self.config, rounds, last)
        write_json(self.run.path / "summary.json", summary.to_json())
        return summary

    @property
    def serving(self) -> Serving:
        """The variants as they serve now."""
        return Serving(self.state.variants, self.state.memory.routing, self.evolver.router)

    async def round(self, number: int) -> RoundRecord:
        """One round, each phase once."""
        serving, version = self.serving, self.version
        played = await self._rounds.play(number)
        evolved, trained = played.evolved, played.trained
        self.state = EvolutionState.from_json(evolved["state"], self.store.get)
        self._point(number, serving.main, evolved["summary"])
        published: dict[str, Any] = {"wall": 0.0}
        if trained["version"] != version:
            self.version, self.fingerprint = trained["version"], trained["fingerprint"]
            published = await self._phase(
                f"{number}/publish", [self.version, self.fingerprint],
                self.learner.check_probe, trained["probe"], trained["probe_logprobs"],
            )  # fmt: skip
        stats = self.buffer.stats(number, version)
        record = round_record(self.config, number, serving, version, played, published, stats)
        write_summed(
            self.run.path / "state.json",
            {
                "schema": 1,
                "round": number + 1,
                "harness_id": self.state.incumbent.id,
                "policy_version": self.version,
            },
        )
        self._forget_policies()
        self.buffer.retain(number)
        return record

    def _point(self, number: int, before: str, summary: dict[str, Any]) -> None:
        """Move the incumbent's pointer to where the round left it. A resumed run goes through its
        rounds again: a move that later ones followed is left alone."""
        id = self.state.incumbent.id
        if id == before:
            return
        moves = [r for r in self.store.records().records if r.pointer == "incumbent"]
        if any(r.round == number and r.id == id for r in moves[:-1]):
            return
        if summary["outcome"] == "rolled_back" and any(r.id == id for r in moves):
            self.store.rollback("incumbent", id, round=number, note=summary["reason"][:500])
        else:
            self.store.move("incumbent", id, round=number)

    # --- phases ---

    async def _phase(self, key: str, inputs: Any, compute: Any, *args: Any) -> dict[str, Any]:
        """A journaled phase: its JSON result, computed once, with the checksums of its `files`.

        Before the first one that is computed, and after each new policy, the engine gets the
        weights that the journal speaks of.
        """

        computed = False

        async def run() -> dict[str, Any]:
            nonlocal computed
            STOP.check(self.run.path)
            computed, began = True, time.monotonic()
            with logs.within(key):
                _log.info("begins")
                await self._serve()
                result: dict[str, Any] = await compute(*args)
                files = seal(self.run, result.pop("files", ()))
                _log.info("ends after %.1f s", time.monotonic() - began)
            return {**result, "files": files, "wall": time.monotonic() - began}

        found: dict[str, Any] = await self.journal.once(key, inputs, run)
        if computed:
            events.add(self.run.path, "phase", key=key, wall_s=round(found["wall"], 3))
        return found

    async def measure(self, number: int) -> dict[str, Any]:
        """The held-out tasks, where the round is one that measures."""
        serving = self.serving
        first_or_last = number in (0, self.config.rounds)
        if not first_or_last and number % self.config.evaluation.every:
            return {"splits": {}, "tokens": [0, 0], "wall": 0.0}
        return await self._phase(
            f"{number}/measure", self._pair, self.evaluator.measure, number,
            serving, self.version, first_or_last,
        )  # fmt: skip

    async def rollout(self, number: int) -> dict[str, Any]:
        """The round's own tasks, under the harness and the policy that serve now."""
        return await self._phase(f"{number}/rollout", self._pair, self._roll, number)

    async def evolve(self, number: int, rolled: dict[str, Any]) -> dict[str, Any]:
        """The next harness, from what was rolled out."""
        episodes = [decode(Episode, item) for item in rolled["episodes"]]
        return await self._phase(
            f"{number}/evolve", self._pair, self.evolver.evolve, number, self.state, self.version,
            episodes,
        )  # fmt: skip

    async def train(self, number: int) -> dict[str, Any]:
        """The next policy, from the buffer."""
        trained = await self._phase(
            f"{number}/train", self._pair, self.learner.train, number, self.version
        )
        self._consumed = number + 1
        return trained

    @property
    def _pair(self) -> list[Any]:
        return [self.serving.inputs, self.version]

    async def _roll(self, number: int) -> dict[str, Any]:
        config = self.config
        tasks = self.tasks.batch(number, config.tasks.per_round)
        serving = self.serving
        specs = routed_specs(
            config.seed, f"{number:04d}/incumbent", number, tasks, serving, "incumbent",
            self.version, config.tasks.samples, f"round {number}",
        )  # fmt: skip
        self.live.start("rollout", len(specs))
        finished: list[Trajectory] = []

        def progress(result: EpisodeResult) -> None:
            finished.append(result.trajectory)
            self.live.advance("rollout")

        manager = StalenessManager(len(specs), self._lead, number * len(specs))
        results = await self.stack.pool.run(
            specs, self.run.bundles, "full", progress, Admission(manager, lambda: self._consumed)
        )
        self.live.finish("rollout")
        trajectories = [r.trajectory for r in results]
        self.buffer.append(number, "incumbent", trajectories)
        path = self.run.traces(number, "incumbent")
        write_traces(path, results)
        instructions = {task.id: task.view.instruction for task in tasks}
        return {
            "evolve": evolve_result([t for t in trajectories if t.scored]).model_dump(mode="json"),
            "tokens": tokens_of(trajectories),
            "rollout": rollout_record(trajectories, finished).model_dump(mode="json"),
            "variants": {
                name: {"harness_id": serving.bundle(name).id, "tasks": len(own)}
                for name, own in serving.mix(tasks).items()
            },
            "episodes": [
                encode(evidence(r, instructions[r.trajectory.task_id], _ref(self.run, r, path)))
                for r in results
            ],
            "files": [self.buffer.manifest(number, "incumbent"), path],
        }

    async def _serve(self) -> None:
        async with self._serving:
            if self.served == self.version:
                return
            if self.version == 0:
                await self.stack.serve_base()
            else:
                await self.learner.serve(self.version, self.fingerprint)
            self.served = self.version

    # --- the end ---

    def _forget_policies(self) -> None:
        """Delete trainer states and weights of versions older than the configuration keeps."""
        storage = self.config.storage
        for part, keep in (
            ("trainer", storage.trainer_checkpoints),
            ("policy", storage.policy_weights),
        ):
            versions = sorted(p for p in (self.run.path / part).glob("*") if p.name.isdigit())
            for old in versions[: len(versions) - (keep or len(versions))]:
                shutil.rmtree(old)


def _ref(run: RunDir, result: EpisodeResult, path: Any) -> str:
    return f"{path.relative_to(run.path)}#{result.trajectory.id}"
