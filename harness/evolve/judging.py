"""Judging candidates: screens, one select draw for all, confirm draws for the best, placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.evolve.pairing import paired_draw
from harness.evolve.parts import Ask, GateEvidence, Placement, Variant
from harness.evolve.recipe import Parts, Recipe
from harness.evolve.records import Candidate, Episode, EvalRequest, PairedResult, Verdict
from harness.evolve.routing import Routing
from harness.evolve.state import CandidateReport, Outcome
from harness.evolve.steps import Reviewed, Steps

NOT_YET = ("not judged yet",)


class Judge:
    """Judges one round's candidates, children of variant `parent`. reports: id -> what happened.
    placement: of the one that shipped."""

    def __init__(
        self,
        recipe: Recipe,
        parts: Parts,
        steps: Steps,
        variants: Sequence[Variant],
        routing: Routing,
        parent: int,
    ) -> None:
        self.recipe, self.parts, self.steps, self.at = recipe, parts, steps, steps.at
        self.variants, self.routing, self.parent = tuple(variants), routing, parent
        self.reports: dict[str, CandidateReport] = {}
        self.placement: Placement | None = None
        self._select: tuple[Episode, ...] = ()

    def criticised(self, reviewed: Reviewed) -> None:
        """Archive what the critic refused."""
        for candidate, why in reviewed.rejected:
            verdict = Verdict(candidate.candidate_id, "reject", (f"critic: {why}",))
            self.reports[candidate.candidate_id] = CandidateReport(
                candidate, verdict, critic_refused=True
            )

    async def screened(self, candidate: Candidate, stage: str) -> bool:
        """Run the screens of a stage, first failure stops; the report carries the results."""
        report = self.reports.get(candidate.candidate_id)
        results = dict(report.screens) if report else {}
        select = report.select if report else None
        runs = self._select if stage == "select" else self.at.episodes
        decision, reasons = "deferred", NOT_YET
        for screen in self.parts.screens:
            if screen.stage != stage:
                continue
            name = type(screen).__name__
            results[name] = await screen.check(candidate, self.at, runs, self.steps.evaluate)
            if not results[name].ok:
                decision = "no_effect" if stage == "select" else "reject"
                reasons = (f"{name}: {results[name].note}",)
                break
        verdict = Verdict(candidate.candidate_id, decision, reasons)  # type: ignore[arg-type]
        self.reports[candidate.candidate_id] = CandidateReport(candidate, verdict, results, select)
        return decision == "deferred"

    async def judge(
        self, candidates: Sequence[Candidate], tasks: tuple[str, ...]
    ) -> tuple[Outcome, str]:
        """The first candidate that the acceptor takes and the router places ships."""
        evidence = await self._selected(candidates, tasks)
        if self.recipe.order == "gain":
            # A measured gain before an opinion; the critic's ranking decides between equals.
            evidence.sort(key=lambda item: -_gain(item[1]))
        confirmed = 0
        for candidate, seen in evidence:
            draws: tuple[Episode, ...] = ()
            draw = 0
            while isinstance(step := self.parts.acceptor.step(seen), Ask):
                if not draws:
                    if confirmed == self.parts.acceptor.max_confirm:
                        step = Verdict(
                            candidate.candidate_id,
                            "deferred",
                            (f"{confirmed} candidates with a better claim were confirmed",),
                        )
                        break
                    confirmed += 1
                draw += 1
                request = EvalRequest(
                    (self.at.incumbent, candidate.bundle), "confirm", tasks, step.repeats, draw
                )
                draws = (*draws, *await self.steps.evaluate(request))
                seen = replace(seen, confirm=self._paired(draws, candidate, request))
            verdict = self._place(candidate, step, seen)
            before = self.reports[candidate.candidate_id]
            self.reports[candidate.candidate_id] = replace(
                before, verdict=verdict, select=seen.select, confirm=seen.confirm
            )
            if self.placement is not None:
                outcome: Outcome = "applied" if verdict.decision == "apply" else "forked"
                return outcome, f"{candidate.candidate_id}: {verdict.reasons[0]}"
        return "rejected", f"none of {len(self.reports)} candidates passed the gate"

    def final(self, outcome: str, reason: str) -> tuple[CandidateReport, ...]:
        """All reports by id; a candidate that the round ended before is deferred, with why."""
        shipped = self.placement is not None
        why = "another candidate shipped first" if shipped else f"the round ended first: {reason}"
        out = []
        for _, report in sorted(self.reports.items()):
            if report.verdict.reasons == NOT_YET:
                report = replace(report, verdict=replace(report.verdict, reasons=(why,)))
            out.append(report)
        return tuple(out)

    async def _selected(
        self, candidates: Sequence[Candidate], tasks: tuple[str, ...]
    ) -> list[tuple[Candidate, GateEvidence]]:
        """One select draw for all candidates together: they share the incumbent's runs."""
        # Only what this variant serves: its other tasks are no longer its to keep.
        served = {run.task for run in self.at.episodes}
        empty = GateEvidence(
            candidates[0].candidate_id,
            stable=self.at.memory.stable(self.at.incumbent.id) & served,
            solved=frozenset(run.task for run in self.at.episodes if run.success and run.scored),
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
        self._select = await self.steps.evaluate(request)
        out = []
        for candidate in candidates:
            result = self._paired(self._select, candidate, request)
            report = self.reports[candidate.candidate_id]
            self.reports[candidate.candidate_id] = replace(report, select=result)
            if await self.screened(candidate, "select"):
                out.append(
                    (candidate, replace(empty, candidate_id=candidate.candidate_id, select=result))
                )
        return out

    def _paired(
        self, runs: Sequence[Episode], candidate: Candidate, request: EvalRequest
    ) -> PairedResult:
        return paired_draw(
            runs,
            candidate.harness_id,
            self.at.incumbent.id,
            request,
            self.recipe.min_pairs,
            candidate.candidate_id,
        )

    def _place(self, candidate: Candidate, verdict: Verdict, seen: GateEvidence) -> Verdict:
        """Place what is to ship. The verdict, a rejection where the router has no place for it."""
        if verdict.decision not in ("apply", "fork"):
            return verdict
        episodes = self.steps.episodes()
        routing = self.parts.router.observe(self.variants, self.routing, episodes)
        found = self.parts.router.place(
            self.variants, routing, self.parent, candidate, verdict.decision, seen, episodes
        )
        if found.refused:
            reasons = (f"no {verdict.decision}: {found.refused}", *verdict.reasons)
            return replace(verdict, decision="reject", reasons=reasons)
        self.placement = found
        return verdict


def _gain(evidence: GateEvidence) -> float:
    return evidence.select.mean_d if evidence.select else 0.0
