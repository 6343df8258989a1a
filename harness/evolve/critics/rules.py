"""The rule critic: portfolio rule, care for broken tasks, order by predicted impact.

Source: HarnessX §4 (Critic).
"""

from __future__ import annotations

from harness.change import summary
from harness.evolve.parts import Part, Situation
from harness.evolve.records import Candidate, Digest, Landscape, Review


class RulesCritic(Part):
    """Refuses candidates of a kind held back; asks for a revision of one that leaves a task out
    which the last ship broke; ranks the rest.

    A broken task is addressed where the manifest says that it will pass, or names it at risk and
    argues why it holds. Worth: the actionability of the tasks said to improve, summed, × the lowest
    reputation of the edit's kinds (½ before any try).
    """

    async def review(
        self,
        at: Situation,
        digest: Digest,
        landscape: Landscape,
        candidates: tuple[Candidate, ...],
    ) -> Review:
        rejected: dict[str, str] = {}
        revise: dict[str, str] = {}
        worth: dict[str, float] = {}
        for candidate in candidates:
            # Counted from the diff: what a manifest says of its kinds is not known to be true yet.
            kinds = summary(at.incumbent, candidate.bundle).kinds
            if held := sorted(set(kinds) & set(landscape.held_back)):
                rejected[candidate.candidate_id] = (
                    f"kind {', '.join(held)} is held back: it shipped lately and its predictions "
                    "did not come true"
                )
            elif left := unaddressed(candidate, landscape):
                revise[candidate.candidate_id] = (
                    f"the manifest does not address tasks that the last ship broke: "
                    f"{', '.join(left)}"
                )
            else:
                trust = min((landscape.reputation.get(kind, 0.5) for kind in kinds), default=0.5)
                worth[candidate.candidate_id] = predicted_weight(candidate, digest) * trust
        ranking = sorted(worth, key=lambda name: (-worth[name], name))
        return Review(tuple(ranking), rejected, revise)


def unaddressed(candidate: Candidate, landscape: Landscape) -> tuple[str, ...]:
    """Tasks that the last ship broke and that the manifest says nothing of, sorted."""
    manifest = candidate.manifest
    impact = manifest.predicted_impact
    said = {*impact.will_unlock, *impact.will_stabilise}
    if manifest.why_at_risk_hold.strip():
        said.update(impact.at_risk)
        said.update(task for task in landscape.regressed if task in manifest.why_at_risk_hold)
    return tuple(sorted(set(landscape.regressed) - said))


def predicted_weight(candidate: Candidate, digest: Digest) -> float:
    """Summed actionability of the tasks that the manifest says will improve."""
    impact = candidate.manifest.predicted_impact
    said = {*impact.will_unlock, *impact.will_stabilise}
    return sum(item.actionability for item in digest.tasks if item.task in said)
