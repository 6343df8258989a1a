"""The engine: one round of evolution of whatever recipe, over its parts.

Source: HarnessX §4 (algorithm), with ours: every round that ships nothing uses up patience, and
candidates are rolled out before they ship. Deterministic given the episodes, the evaluator and
`rng`; each paid step is journaled, so a killed round resumes and pays nothing twice.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.evolve.journal import Journal
from harness.evolve.meta import edit_key
from harness.evolve.pairing import pair
from harness.evolve.parts import Ask, Evaluate, GateEvidence, Situation
from harness.evolve.recipe import Parts, Recipe
from harness.evolve.records import (
    Candidate,
    Digest,
    Episode,
    EvalRequest,
    HistoryRecord,
    Landscape,
    PairedResult,
    Purpose,
    Verdict,
    decode,
    encode,
)
from harness.evolve.screens.dynamic import SmokeLost
from harness.evolve.state import (
    CandidateReport,
    EvolutionResult,
    EvolutionState,
    Outcome,
    candidate_from_json,
    candidate_to_json,
)

NOT_YET = ("not judged yet",)


class PairsLost(RuntimeError):
    """Infrastructure errors took away too many pairs for a verdict."""


async def evolve(
    recipe: Recipe,
    parts: Parts | None,
    state: EvolutionState,
    episodes: Sequence[Episode],
    evaluate: Evaluate,
    journal: Journal,
    rng: random.Random,
    deny: Sequence[str] = (),
) -> EvolutionResult:
    """One round: digest the incumbent's episodes, propose, screen, judge, place.

    evaluate: rolls an `EvalRequest` out, on the policy of this round. rng: one number is drawn
    from it. deny: terms that no edit may contain. The result's state belongs to round + 1; an
    `aborted` round leaves the state as it was.
    """
    if parts is None:
        return EvolutionResult("off", f"recipe {recipe.name} evolves nothing", _next(state))
    if state.memory.idle >= recipe.patience:
        why = f"{state.memory.idle} rounds without a ship; patience is {recipe.patience}"
        return EvolutionResult("stopped", why, _next(state))
    own = tuple(item for item in episodes if item.harness_id == state.incumbent.id)
    if not any(item.scored for item in own):
        why = (
            f"none of {len(episodes)} episodes is a scored run of the incumbent "
            f"{state.incumbent.id[:12]}; run the round's rollouts again"
        )
        return EvolutionResult("aborted", why, state)
    at = Situation(
        round=state.round,
        incumbent=state.incumbent,
        episodes=own,
        memory=state.memory.observe(own),
        seed=rng.getrandbits(63),
        deny=tuple(deny),
        room=parts.router.room(state.variants),
    )
    return await _Round(recipe, parts, state, at, evaluate, journal).run()


class _Round:
    def __init__(
        self,
        recipe: Recipe,
        parts: Parts,
        state: EvolutionState,
        at: Situation,
        evaluate: Evaluate,
        journal: Journal,
    ) -> None:
        self.recipe, self.parts, self.state, self.at = recipe, parts, state, at
        self._evaluate, self.journal = evaluate, journal
        self.digest: Digest | None = None
        self.landscape: Landscape | None = None
        self.reports: dict[str, CandidateReport] = {}
        self.rolled: dict[str, tuple[Episode, ...]] = {}  # journal key -> episodes, in order
        self.select_episodes: tuple[Episode, ...] = ()

    async def run(self) -> EvolutionResult:
        try:
            outcome, reason = await self.rounds()
        except (PairsLost, SmokeLost) as error:
            return EvolutionResult(
                "aborted", str(error), self.state, self.final(), self.digest, self.landscape,
                self.episodes(),
            )  # fmt: skip
        return self.close(outcome, reason)

    async def rounds(self) -> tuple[Outcome, str]:
        digest = self.digest = await self.digested()
        if digest.actionability < self.recipe.min_actionability:
            least = self.recipe.min_actionability
            return "no_op", f"actionability {digest.actionability:g} is below {least:g}"
        landscape = self.landscape = await self.planned(digest)
        if not landscape.objectives:
            return "no_op", "no failure category is worth an edit"
        candidates = await self.proposed(digest, landscape)
        if not candidates:
            return "no_op", "no candidate was left to propose"
        tasks = self.parts.selector.select(self.at)
        if not tasks:
            return "no_op", "no task was selected to judge candidates on"
        passed = [item for item in candidates if await self.screened(item, "proposal")]
        if not passed:
            return "rejected", f"none of {len(candidates)} candidates passed the screens"
        evidence = await self.selected(passed, tasks)
        return await self.judged(evidence, tasks)

    # --- evidence and candidates, each paid once ---

    async def digested(self) -> Digest:
        async def compute() -> Any:
            return encode(await self.parts.analyst.digest(self.at))

        return decode(Digest, await self.once("digest", self.parts.analyst, None, compute))

    async def planned(self, digest: Digest) -> Landscape:
        async def compute() -> Any:
            return encode(await self.parts.director.plan(self.at, digest))

        inputs = encode(digest)
        return decode(Landscape, await self.once("plan", self.parts.director, inputs, compute))

    async def proposed(self, digest: Digest, landscape: Landscape) -> tuple[Candidate, ...]:
        async def compute() -> Any:
            found = await self.parts.proposer.propose(self.at, digest, landscape)
            return [candidate_to_json(item) for item in found]

        inputs = [encode(digest), encode(landscape)]
        found = await self.once("propose", self.parts.proposer, inputs, compute)
        return tuple(candidate_from_json(item, self.at.incumbent) for item in found)

    async def once(self, step: str, part: Any, inputs: Any, compute: Any) -> Any:
        """Journal a step of a part under all that it can see."""
        seen = {
            "part": [type(part).__name__, part.model_dump(mode="json")],
            "incumbent": self.at.incumbent.id,
            "episodes": [encode(item) for item in self.at.episodes],
            "memory": encode(self.at.memory),
            "seed": self.at.seed,
            "inputs": inputs,
        }
        return await self.journal.once(f"{self.at.round}/{step}", seen, compute)

    async def evaluate(self, request: EvalRequest) -> tuple[Episode, ...]:
        """Roll out, once; a request that infrastructure took away wholly is not kept."""
        lost: list[Episode] = []

        async def compute() -> Any:
            runs = list(await self._evaluate(request))
            if runs and not any(run.scored for run in runs):
                lost.extend(runs)
                raise PairsLost(
                    f"{request.purpose} draw {request.draw}: all {len(runs)} rollouts ended in "
                    "infra_error; mend the infrastructure and resume the round"
                )
            return [encode(run) for run in runs]

        ids = "+".join(bundle.id[:12] for bundle in request.bundles)
        key = f"{self.at.round}/{request.purpose}/{request.draw}/{ids}"
        inputs = {"seed": self.at.seed, **request.inputs()}
        try:
            found = await self.journal.once(key, inputs, compute)
        except PairsLost:
            self.rolled[key] = tuple(lost)
            raise
        self.rolled[key] = tuple(decode(Episode, item) for item in found)
        return self.rolled[key]

    # --- judging ---

    async def screened(self, candidate: Candidate, stage: str) -> bool:
        """Run the screens of a stage, first failure stops; the report carries the results."""
        report = self.reports.get(candidate.candidate_id)
        results = dict(report.screens) if report else {}
        select = report.select if report else None
        runs = self.select_episodes if stage == "select" else self.at.episodes
        decision, reasons = "deferred", NOT_YET
        for screen in self.parts.screens:
            if screen.stage != stage:
                continue
            name = type(screen).__name__
            results[name] = await screen.check(candidate, self.at, runs, self.evaluate)
            if not results[name].ok:
                decision = "no_effect" if stage == "select" else "reject"
                reasons = (f"{name}: {results[name].note}",)
                break
        verdict = Verdict(candidate.candidate_id, decision, reasons)  # type: ignore[arg-type]
        self.reports[candidate.candidate_id] = CandidateReport(candidate, verdict, results, select)
        return decision == "deferred"

    async def selected(
        self, candidates: Sequence[Candidate], tasks: tuple[str, ...]
    ) -> list[tuple[Candidate, GateEvidence]]:
        """One select draw for all candidates together: they share the incumbent's runs."""
        solved = frozenset(run.task for run in self.at.episodes if run.success and run.scored)
        empty = GateEvidence(
            candidates[0].candidate_id,
            stable=self.at.memory.stable(self.at.incumbent.id),
            solved=solved,
            rivals=len(candidates),
            room=self.at.room,
        )
        ask = self.parts.acceptor.step(empty)
        if not isinstance(ask, Ask) or ask.purpose != "select":
            raise TypeError(
                f"acceptor {type(self.parts.acceptor).__name__} answered {ask!r} without any "
                "evidence; it must ask for a select draw first"
            )
        bundles = (self.at.incumbent, *(item.bundle for item in candidates))
        request = EvalRequest(bundles, "select", tasks, ask.repeats, draw=0)
        self.select_episodes = await self.evaluate(request)
        out = []
        for candidate in candidates:
            result = self.paired(self.select_episodes, candidate, request)
            report = self.reports[candidate.candidate_id]
            self.reports[candidate.candidate_id] = replace(report, select=result)
            if await self.screened(candidate, "select"):
                out.append(
                    (candidate, replace(empty, candidate_id=candidate.candidate_id, select=result))
                )
        return out

    async def judged(
        self, evidence: Sequence[tuple[Candidate, GateEvidence]], tasks: tuple[str, ...]
    ) -> tuple[Outcome, str]:
        """Best select result first; the first candidate that the acceptor takes ships."""
        ranked = sorted(evidence, key=lambda item: (-_gain(item[1]), item[0].candidate_id))
        confirmed = 0
        for candidate, seen in ranked:
            draws: tuple[Episode, ...] = ()
            draw = 0
            while isinstance(step := self.parts.acceptor.step(seen), Ask):
                if not draws:
                    if confirmed == self.parts.acceptor.max_confirm:
                        step = Verdict(
                            candidate.candidate_id,
                            "deferred",
                            (f"{confirmed} candidates with a better select draw were confirmed",),
                        )
                        break
                    confirmed += 1
                draw += 1
                request = EvalRequest(
                    (self.at.incumbent, candidate.bundle), "confirm", tasks, step.repeats, draw
                )
                fresh = await self.evaluate(request)
                draws = (*draws, *fresh)
                confirm = self.paired(draws, candidate, request)
                seen = replace(seen, confirm=confirm)
            self.report(candidate, step, seen)
            if step.decision == "apply":
                return "applied", f"{candidate.candidate_id}: {step.reasons[0]}"
            if step.decision == "fork":
                return "forked", f"{candidate.candidate_id}: {step.reasons[0]}"
        return "rejected", f"none of {len(self.reports)} candidates passed the gate"

    def paired(
        self, runs: Sequence[Episode], candidate: Candidate, request: EvalRequest
    ) -> PairedResult:
        """Pair the runs of one draw, or of all confirm draws. Raises PairsLost when too few are left."""
        purpose: Purpose = "confirm" if request.purpose == "confirm" else "select"
        result = pair(runs, candidate.harness_id, self.at.incumbent.id, purpose)
        seeds = {(run.task, run.seed) for run in runs}
        asked = max(len(seeds), len(request.tasks) * request.repeats)
        if result.pairs < self.recipe.min_pairs * asked:
            raise PairsLost(
                f"{candidate.candidate_id}: infrastructure errors left {result.pairs} of {asked} "
                f"{purpose} pairs; {self.recipe.min_pairs:.0%} are the least for a verdict. Mend "
                "the infrastructure and resume the round"
            )
        return replace(result, asked=asked, lost=asked - result.pairs)

    # --- the end ---

    def report(self, candidate: Candidate, verdict: Verdict, seen: GateEvidence) -> None:
        before = self.reports[candidate.candidate_id]
        self.reports[candidate.candidate_id] = replace(
            before, verdict=verdict, select=seen.select, confirm=seen.confirm
        )

    def final(self) -> tuple[CandidateReport, ...]:
        return tuple(self.reports[key] for key in sorted(self.reports))

    def episodes(self) -> tuple[Episode, ...]:
        return tuple(run for runs in self.rolled.values() for run in runs)

    def close(self, outcome: Outcome, reason: str) -> EvolutionResult:
        """Place what shipped, say why the rest did not, and remember both."""
        reports = tuple(self._settled(item) for item in self.final())
        variants = self.state.variants
        memory = self.at.memory.observe(self.episodes())
        for report in reports:
            key = edit_key(report.candidate.edits)
            if report.verdict.decision in ("apply", "fork"):
                variants = self.parts.router.place(variants, report.candidate, report.verdict)
            if report.verdict.decision == "reject" and report.select is None:
                memory = memory.refuse(key, self.at.round)
        memory = memory.judged(
            _record(self.at.round, item) for item in reports if item.select is not None
        )
        memory = memory.ended(shipped=outcome in ("applied", "forked"))
        memory = memory.keep({variant.bundle.id for variant in variants})
        state = EvolutionState(self.at.round + 1, variants, memory)
        return EvolutionResult(
            outcome, reason, state, reports, self.digest, self.landscape, self.episodes()
        )

    def _settled(self, report: CandidateReport) -> CandidateReport:
        """A candidate that the round ended before: deferred, another one shipped."""
        if report.verdict.decision != "deferred" or report.verdict.reasons != NOT_YET:
            return report
        why = ("another candidate shipped first",)
        return replace(report, verdict=replace(report.verdict, reasons=why))


def _next(state: EvolutionState) -> EvolutionState:
    return state.at(state.round + 1)


def _gain(evidence: GateEvidence) -> float:
    return evidence.select.mean_d if evidence.select else 0.0


def _record(round: int, report: CandidateReport) -> HistoryRecord:
    candidate, verdict = report.candidate, report.verdict
    impact = candidate.manifest.predicted_impact
    result = report.confirm or report.select
    judged = {item.task for item in result.tasks} if result else set()
    predicted = {*impact.will_unlock, *impact.will_stabilise} & judged
    cost = None
    if result and result.incumbent_tokens > 0:
        cost = result.candidate_tokens / result.incumbent_tokens - 1
    return HistoryRecord(
        round=round,
        candidate_id=candidate.candidate_id,
        harness_id=candidate.harness_id,
        parent=candidate.parent,
        kinds=candidate.manifest.kinds,
        hypothesis=candidate.manifest.root_cause,
        edit_key=edit_key(candidate.edits),
        decision=verdict.decision,
        delta_score=result.mean_d if result else None,
        delta_cost=cost,
        predicted=len(predicted),
        hits=len(predicted & set(verdict.improved)),
        improved=verdict.improved,
        regressed=verdict.regressed,
    )
