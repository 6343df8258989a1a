"""The paper's gate read literally: no task that the incumbent solved may be lost (HarnessX §4)."""

from __future__ import annotations

from pydantic import Field

from harness.evolve.parts import Ask, GateEvidence, Part
from harness.evolve.records import Verdict


class LiteralSeesaw(Part):
    """Accepts iff every task solved in the round (pass@`repeats`) is solved by the candidate too.

    It needs no improvement, and on a set with unstable tasks it rejects even a no-op: kept to be
    compared with. The paper rolls no candidate out before it ships; this one is rolled out once.
    """

    repeats: int = Field(2, ge=1)
    max_confirm: int = Field(1, ge=1)

    def step(self, evidence: GateEvidence) -> Ask | Verdict:
        select = evidence.select
        if select is None:
            return Ask("select", self.repeats)
        before = {item.task for item in select.tasks if item.task in evidence.solved}
        after = {item.task for item in select.tasks if item.candidate > 0}
        lost = tuple(sorted(before - after))
        gained = tuple(sorted(after - evidence.solved))
        numbers = {"mean_d": select.mean_d, "lost": float(len(lost)), "gained": float(len(gained))}
        if lost:
            why = f"{len(lost)} solved tasks of {len(before)} were not solved again"
            return Verdict(evidence.candidate_id, "reject", (why,), numbers, gained, lost)
        why = f"all {len(before)} solved tasks were solved again"
        return Verdict(evidence.candidate_id, "apply", (why,), numbers, gained)
