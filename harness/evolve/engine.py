"""The engine: one round of evolution of whatever recipe, over its parts.

Source: HarnessX §4 (algorithm), with ours: every round that ships nothing uses up patience, a stop
is tried again once the policy has changed, candidates are rolled out before they ship, and what
shipped is held against the best harness before it. Deterministic given the episodes, the evaluator
and `rng`; each paid step is journaled, so a killed round resumes and pays nothing twice.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.evolve.drift import DriftReport, drift_test
from harness.evolve.journal import Journal
from harness.evolve.judging import Judge
from harness.evolve.ledger import Judged, history_record
from harness.evolve.meta import Memory, edit_key
from harness.evolve.pairing import paired_draw
from harness.evolve.parts import Evaluate, EvolutionInfraError, PartFailed, Situation, Variant
from harness.evolve.recipe import Parts, Recipe
from harness.evolve.records import Digest, Episode, EvalRequest, Landscape
from harness.evolve.state import EvolutionResult, EvolutionState, Outcome
from harness.evolve.steps import RolloutBudget, Steps

if TYPE_CHECKING:
    from harness.evolve.llm.client import Chat


async def evolve(
    recipe: Recipe,
    parts: Parts | None,
    state: EvolutionState,
    episodes: Sequence[Episode],
    evaluate: Evaluate,
    journal: Journal,
    rng: random.Random,
    deny: Sequence[str] = (),
    *,
    policy_version: int = 0,
    llm: Chat | None = None,
    max_rollouts: int | None = None,
) -> EvolutionResult:
    """One round: digest a variant's episodes, propose, criticise, screen, judge, place.

    episodes: of every variant, each on the tasks that it serves. evaluate: rolls an `EvalRequest`
    out, on the policy of this round. rng: one number is drawn from it. deny: terms that no edit may
    contain. max_rollouts: that evolution may ask for in the whole run. The result's state belongs
    to round + 1; an `aborted` round leaves the state as it was.
    """
    if parts is None:
        return EvolutionResult("off", f"recipe {recipe.name} evolves nothing", state.next())
    memory = state.memory
    drifts = bool(recipe.drift_every) and memory.since_drift + 1 >= recipe.drift_every
    why = sat_out(memory, recipe, state.round, policy_version)
    if why and not (drifts and any(map(_moved, state.variants))):
        since = memory.since_drift + 1 if recipe.drift_every else 0
        return EvolutionResult("stopped", why, state.next(replace(memory, since_drift=since)))
    ids = {variant.bundle.id for variant in state.variants}
    own = tuple(item for item in episodes if item.harness_id in ids)
    if not any(item.scored for item in own):
        names = ", ".join(sorted(id[:12] for id in ids))
        why = (
            f"none of {len(episodes)} episodes is a scored run of the incumbent {names}; run the "
            "round's rollouts again"
        )
        return EvolutionResult("aborted", why, state)
    routing = parts.router.observe(state.variants, memory.routing, own)
    memory = replace(memory.observe(own), routing=routing)
    chosen = neediest(state.variants, own, memory)
    variant = state.variants[chosen]
    at = Situation(
        round=state.round,
        incumbent=variant.bundle,
        episodes=tuple(item for item in own if item.harness_id == variant.bundle.id),
        memory=memory.of(variant.name),
        seed=rng.getrandbits(63),
        deny=tuple(deny),
        room=parts.router.room(state.variants),
        llm=llm,
    )
    steps = Steps(parts, at, evaluate, journal, RolloutBudget(max_rollouts, memory.rollouts))
    return await _Round(recipe, parts, state, memory, chosen, steps, policy_version).run(
        why, drifts
    )


def sat_out(memory: Memory, recipe: Recipe, round: int, policy_version: int) -> str:
    """Why the round is sat out: patience is used up. "" where it is not, or where the policy has
    changed since the last try and `retry_after` rounds were sat out."""
    if memory.idle < recipe.patience:
        return ""
    why = f"{memory.idle} rounds without a ship; patience is {recipe.patience}"
    if memory.last_try is None:
        return why
    tried, version = memory.last_try
    return "" if version != policy_version and round - tried > recipe.retry_after else why


def neediest(variants: Sequence[Variant], episodes: Sequence[Episode], memory: Memory) -> int:
    """The variant with the most actionable weight among its tasks: 1.0 where all runs fail, 0.8
    where some do; divided by 1 + the rounds in which work on it shipped nothing, so that a hopeless
    one does not hold the others up. Ties to the older."""

    def weight(variant: Variant) -> float:
        runs: dict[str, list[bool]] = {}
        for item in episodes:
            if item.scored and item.harness_id == variant.bundle.id:
                runs.setdefault(item.task, []).append(item.success)
        total = sum(0.0 if all(r) else 0.8 if any(r) else 1.0 for r in runs.values())
        return total / (1 + memory.attempts.get(variant.bundle.id, 0))

    # A variant without a scored run this round cannot be worked on.
    ran = {item.harness_id for item in episodes if item.scored}
    open_ = [n for n, variant in enumerate(variants) if variant.bundle.id in ran]
    return max(open_, key=lambda n: (weight(variants[n]), -n))


class _Round:
    def __init__(
        self,
        recipe: Recipe,
        parts: Parts,
        state: EvolutionState,
        memory: Memory,
        chosen: int,
        steps: Steps,
        policy_version: int,
    ) -> None:
        self.recipe, self.parts, self.state, self.memory = recipe, parts, state, memory
        self.chosen, self.steps, self.at, self.version = chosen, steps, steps.at, policy_version
        self.variants = state.variants
        self.judge = Judge(recipe, parts, steps, state.variants, memory.routing, chosen)
        self.digest: Digest | None = None
        self.landscape: Landscape | None = None
        self.drift: list[DriftReport] = []

    async def run(self, stopped: str, drifts: bool) -> EvolutionResult:
        """stopped: why the round is sat out but for its drift test; "" where it is not."""
        try:
            outcome, reason = await self.phases(stopped, drifts)
        except EvolutionInfraError as error:
            return self.result("aborted", str(error), self.state)
        except PartFailed as error:
            outcome, reason = "no_op", error.reason
        return self.close(outcome, reason)

    async def phases(self, stopped: str, drifts: bool) -> tuple[Outcome, str]:
        if drifts:
            await self.test_drift()
            if lost := [item for item in self.drift if item.decision == "roll_back"]:
                return "rolled_back", "; ".join(f"{i.variant}: {i.reason}" for i in lost)
        if stopped:
            return "stopped", stopped
        digest = self.digest = await self.steps.digest()
        if digest.actionability < self.recipe.min_actionability:
            least = self.recipe.min_actionability
            return "no_op", f"actionability {digest.actionability:g} is below {least:g}"
        landscape = self.landscape = await self.steps.plan(digest)
        if not landscape.objectives:
            return "no_op", "no failure category is worth an edit"
        candidates = await self.steps.propose(digest, landscape)
        if not candidates:
            return "no_op", "no candidate was left to propose"
        reviewed = await self.steps.review(digest, landscape, candidates)
        self.judge.criticised(reviewed)
        if not reviewed.ranked:
            return "no_op", f"the critic let none of {len(candidates)} candidates go on"
        tasks = self.parts.selector.select(self.at)
        if not tasks:
            return "no_op", "no task was selected to judge candidates on"
        ranked = reviewed.ranked
        passed = [item for item in ranked if await self.judge.screened(item, "proposal")]
        if not passed:
            return "rejected", f"none of {len(ranked)} candidates passed the screens"
        return await self.judge.judge(passed, tasks)

    async def test_drift(self) -> None:
        """Hold every variant that has changed against the best harness before it."""
        self.memory = replace(self.memory, since_drift=-1)  # `close` counts this round
        for n, variant in enumerate(self.variants):
            best = variant.best
            if best is None or not _moved(variant):
                continue
            tasks = self.stable_set(n, variant.bundle.id, best.id)
            if len(tasks) < self.recipe.drift.min_tasks:
                continue
            request = EvalRequest(
                (best, variant.bundle), "drift", tasks, self.recipe.drift.repeats, draw=0
            )
            runs = await self.steps.evaluate(request)
            name = f"drift test of variant {variant.name}"
            result = paired_draw(
                runs, variant.bundle.id, best.id, request, self.recipe.min_pairs, name
            )
            report = drift_test(
                variant.name, best.id, variant.bundle.id, variant.drift, result, self.recipe.drift
            )
            self.drift.append(report)
            match report.decision:
                case "roll_back":
                    found = self.memory.led_to(variant.bundle.id, best.id)
                    self.memory = self.memory.given_up(found, self.at.round, result)
                    changed = Variant(variant.name, best)
                case "best":
                    changed = Variant(variant.name, variant.bundle)
                case "keep":
                    changed = replace(variant, drift=report.evidence)
            self.variants = (*self.variants[:n], changed, *self.variants[n + 1 :])
        self.judge.variants = self.variants

    def stable_set(self, n: int, *harness_ids: str) -> tuple[str, ...]:
        """Tasks that variant n serves and that one of these harnesses holds stable; of many, a
        seeded sample. Those of both: a fair set favours neither."""
        stable = {task for id in harness_ids for task in self.memory.stable(id)}
        served = sorted(
            task
            for task in stable
            if self.parts.router.serves(self.variants, self.memory.routing, task) == n
        )
        if len(served) > self.recipe.drift.max_tasks:
            rng = random.Random(f"{self.at.seed}:drift:{n}")
            served = sorted(rng.sample(served, self.recipe.drift.max_tasks))
        return tuple(served)

    def close(self, outcome: Outcome, reason: str) -> EvolutionResult:
        """Say why what did not ship did not, and remember it all."""
        reports = self.judge.final(outcome, reason)
        episodes = self.steps.episodes()
        memory = self.memory.observe(episodes)
        for report in reports:
            refused = report.verdict.decision == "reject" and report.select is None
            if refused and not report.critic_refused:
                memory = memory.refuse(edit_key(report.candidate.edits), self.at.round)
        name = self.state.variants[self.chosen].name
        memory = memory.judged(
            replace(history_record(Judged.of(self.at.round, item)), variant=name)
            for item in reports
            if item.select is not None
        )
        if outcome != "stopped":
            memory = memory.ended(outcome in ("applied", "forked"), self.at.incumbent.id)
            memory = replace(memory, last_try=(self.at.round, self.version))
        placed = self.judge.placement
        variants = placed.variants if placed else self.variants
        routing = (
            placed.routing
            if placed
            else self.parts.router.observe(variants, memory.routing, episodes)
        )
        memory = replace(
            memory,
            routing=routing,
            rollouts=memory.rollouts + len(episodes),
            since_drift=memory.since_drift + 1 if self.recipe.drift_every else 0,
        )
        alive = [bundle.id for v in variants for bundle in (v.bundle, v.best) if bundle]
        memory = memory.keep(set(alive))
        state = EvolutionState(self.at.round + 1, variants, memory)
        return self.result(outcome, reason, state)

    def result(self, outcome: Outcome, reason: str, state: EvolutionState) -> EvolutionResult:
        return EvolutionResult(
            outcome,
            reason,
            state,
            self.judge.final(outcome, reason),
            self.digest,
            self.landscape,
            self.steps.episodes(),
            self.state.variants[self.chosen].name,
            tuple(self.drift),
        )


def _moved(variant: Variant) -> bool:
    return variant.best is not None and variant.best.id != variant.bundle.id
