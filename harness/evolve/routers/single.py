"""The single router: one harness serves every task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.evolve.parts import GateEvidence, Part, Placement, Variant
from harness.evolve.records import Candidate, Decision, Episode
from harness.evolve.routing import Routing


class Single(Part):
    """No room for a fork; an applied candidate takes the incumbent's place."""

    def room(self, variants: Sequence[Variant]) -> int:
        return 0

    def route(
        self, variants: Sequence[Variant], routing: Routing, features: Mapping[str, str]
    ) -> int:
        return 0

    def serves(self, variants: Sequence[Variant], routing: Routing, task: str) -> int:
        return 0

    def observe(
        self, variants: Sequence[Variant], routing: Routing, episodes: Iterable[Episode]
    ) -> Routing:
        return routing

    def place(
        self,
        variants: Sequence[Variant],
        routing: Routing,
        parent: int,
        candidate: Candidate,
        decision: Decision,
        evidence: GateEvidence,
        episodes: Sequence[Episode],
    ) -> Placement:
        if decision == "fork":
            return Placement(tuple(variants), routing, "one harness serves every task")
        placed = list(variants)
        placed[parent] = placed[parent].applied(candidate.bundle)
        return Placement(tuple(placed), routing)
