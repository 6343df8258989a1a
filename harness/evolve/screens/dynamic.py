"""Screens that run the candidate: a smoke run, and whether the edit is at work in the select draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from harness.evolve.parts import (
    Evaluate,
    EvolutionInfraError,
    Need,
    Part,
    ScreenResult,
    Situation,
)
from harness.evolve.records import INFRA, Candidate, Episode, EvalRequest

BROKEN = frozenset({"harness_error", "contract_violation"})


class SmokeLost(EvolutionInfraError):
    """Every smoke run ended in an infrastructure error: the candidate cannot be judged."""


class Smoke(Part):
    """Runs the candidate on `tasks` tasks of the round; an error of its own code refuses it.

    Raises SmokeLost when infrastructure left no run to judge by.
    """

    stage: ClassVar[Literal["proposal", "select"]] = "proposal"

    tasks: int = Field(1, ge=1)

    async def check(
        self, candidate: Candidate, at: Situation, episodes: Sequence[Episode], evaluate: Evaluate
    ) -> ScreenResult:
        keys = tuple(sorted({run.task for run in at.episodes})[: self.tasks])
        request = EvalRequest((candidate.bundle,), "smoke", keys, repeats=1, draw=0)
        runs = await evaluate(request)
        for run in runs:
            if run.outcome in BROKEN:
                return ScreenResult(False, f"smoke run of {run.task!r} ended in {run.outcome}")
        if not any(run.scored for run in runs):
            raise SmokeLost(
                f"{candidate.candidate_id}: its {len(runs)} smoke runs ended in {INFRA}; "
                "mend the infrastructure and resume the round"
            )
        return ScreenResult(True)


class Landed(Part):
    """The edit's attribution signature fires in the select draw; else it has no effect."""

    stage: ClassVar[Literal["proposal", "select"]] = "select"
    needs: ClassVar[frozenset[Need]] = frozenset({"harness_trace"})

    async def check(
        self, candidate: Candidate, at: Situation, episodes: Sequence[Episode], evaluate: Evaluate
    ) -> ScreenResult:
        signature = candidate.manifest.attribution_signature
        own = [run for run in episodes if run.harness_id == candidate.harness_id and run.scored]
        if signature.type == "model_input":
            before = [run for run in episodes if run.harness_id == at.incumbent.id]
            count = changed_inputs(own, before)
        else:
            name = f"tool:{signature.name}" if signature.type == "tool" else signature.name
            count = sum(run.fired.get(name, 0) for run in own)
        least = signature.expected_min_calls
        if count < least:
            return ScreenResult(
                False, f"{signature.type} {signature.name!r} fired {count} times; {least} expected"
            )
        return ScreenResult(True, f"{signature.type} {signature.name!r} fired {count} times")


def changed_inputs(candidate: Iterable[Episode], incumbent: Iterable[Episode]) -> int:
    """Pairs (same task, same seed) in which the model read something else after the same actions.

    While actions agree the environment is in the same state, so the harness alone explains the
    difference; after the first different action the rest of the pair says nothing.
    """
    before = {(run.task, run.seed): run for run in incumbent}
    count = 0
    for run in candidate:
        other = before.get((run.task, run.seed))
        if other is None:
            continue
        for mine, theirs in zip(run.trace, other.trace, strict=False):
            known = mine.input_digest and theirs.input_digest
            if known and mine.input_digest != theirs.input_digest:
                count += 1
                break
            if mine.action != theirs.action:
                break
    return count
