"""The single router: one harness serves every task."""

from __future__ import annotations

from dataclasses import replace

from harness.evolve.parts import Part, Variant
from harness.evolve.records import Candidate, Verdict


class Single(Part):
    """No room for a fork; an applied candidate takes the incumbent's place."""

    def room(self, variants: tuple[Variant, ...]) -> int:
        return 0

    def place(
        self, variants: tuple[Variant, ...], candidate: Candidate, verdict: Verdict
    ) -> tuple[Variant, ...]:
        if verdict.decision != "apply":
            return variants
        return (replace(variants[0], bundle=candidate.bundle), *variants[1:])

    def route(self, variants: tuple[Variant, ...], episode_features: dict[str, str]) -> int:
        return 0
