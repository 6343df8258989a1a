"""The single agent's rule: keep an edit unless the score clearly fell (the single-agent baseline)."""

from __future__ import annotations

from pydantic import Field

from harness.evolve.parts import Ask, GateEvidence, Part
from harness.evolve.records import PairedResult, Verdict


class RevertOnLoss(Part):
    """score = pass rate − cost_weight · max(Δcost, 0); reverted iff the score is more than `margin`
    below the best and the number of passed runs changed by `min_passed` or more.

    Δcost: relative change of tokens an episode. The best is the incumbent's score in the same
    paired draw: rates of earlier rounds belong to other tasks and another policy.
    """

    repeats: int = Field(2, ge=1)
    cost_weight: float = Field(0.1, ge=0)
    margin: float = Field(0.03, ge=0)
    min_passed: int = Field(3, ge=0)
    max_confirm: int = Field(1, ge=1)

    def step(self, evidence: GateEvidence) -> Ask | Verdict:
        select = evidence.select
        if select is None:
            return Ask("select", self.repeats)
        score, best, passed = scores(select, self.cost_weight)
        numbers = {"score": score, "best": best, "passed": float(passed)}
        improved = tuple(sorted(item.task for item in select.tasks if item.d > 0))
        regressed = tuple(sorted(item.task for item in select.tasks if item.d < 0))
        revert = score < best - self.margin and abs(passed) >= self.min_passed
        why = (
            f"score {score:.3f} against {best:.3f}, {passed:+d} passed runs: "
            f"{'a clear loss' if revert else 'no clear loss'}"
        )
        decision = "reject" if revert else "apply"
        return Verdict(evidence.candidate_id, decision, (why,), numbers, improved, regressed)  # type: ignore[arg-type]


def scores(result: PairedResult, cost_weight: float) -> tuple[float, float, int]:
    """(the candidate's score, the incumbent's, passed runs more or less) over one paired draw."""
    pairs = result.pairs
    if not pairs:
        return 0.0, 0.0, 0
    mine = sum(item.candidate * item.repeats for item in result.tasks)
    theirs = sum(item.incumbent * item.repeats for item in result.tasks)
    cost = 0.0
    if result.incumbent_tokens > 0:
        cost = result.candidate_tokens / result.incumbent_tokens - 1
    score = mine / pairs - cost_weight * max(cost, 0.0)
    return score, theirs / pairs, round(mine - theirs)
