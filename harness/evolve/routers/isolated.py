"""Variant isolation: several harnesses, each for the clusters of tasks that it solves best.

Source: HarnessX §4 (variant isolation). Ours: a fork is placed only where its gain on the clusters
that it would take, chosen in the select draw, shows in the independent confirm draw; and which
variant is the lowest is judged by what the set would lose without it, because a specialist of hard
tasks has a low rate and is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pydantic import Field

from harness.evolve.acceptors.paired import bootstrap_bounds
from harness.evolve.parts import GateEvidence, Part, Placement, Variant
from harness.evolve.records import Candidate, Decision, Episode
from harness.evolve.routing import Routing, tally_of


class RoutingError(ValueError):
    """Tasks lack a feature that clusters are made of."""


class Isolated(Part):
    """At most `variants` harnesses (K). A task goes to the one with the best p̂(v, c) on its cluster,
    ties to the older; a cluster that none has met goes to the variant best overall.

    by: the features whose values make a cluster. kappa: κ, weight of a variant's overall rate.
    window: runs that a tally remembers. level, min_tasks: of the test that a fork must pass on the
    clusters that it would take.
    """

    variants: int = Field(4, ge=1)
    by: tuple[str, ...] = Field(("task_type",), min_length=1)
    kappa: float = Field(4.0, gt=0)
    window: int = Field(64, ge=1)
    level: float = Field(0.05, gt=0, lt=0.5)
    min_tasks: int = Field(5, ge=2)

    def room(self, variants: Sequence[Variant]) -> int:
        """Free places; 1 when full, since the lowest variant may have to go."""
        return max(self.variants - len(variants), int(self.variants > 1))

    def cluster(self, features: Mapping[str, str]) -> str:
        """Raises RoutingError where a feature of `by` is missing."""
        if missing := sorted(set(self.by) - set(features)):
            raise RoutingError(
                f"router isolated: tasks have no feature {missing}; they have {sorted(features)}. "
                "Name some of these in the recipe's router.isolated.by"
            )
        return "|".join(f"{name}={features[name]}" for name in self.by)

    def route(
        self, variants: Sequence[Variant], routing: Routing, features: Mapping[str, str]
    ) -> int:
        return self._best(variants, routing, self.cluster(features))

    def serves(self, variants: Sequence[Variant], routing: Routing, task: str) -> int:
        return self._best(variants, routing, routing.clusters.get(task, ""))

    def observe(
        self, variants: Sequence[Variant], routing: Routing, episodes: Iterable[Episode]
    ) -> Routing:
        runs = [run for run in episodes if run.scored]
        routing = routing.name_tasks({run.task: self.cluster(run.features) for run in runs})
        for variant in variants:
            own = self._runs(runs, variant.bundle.id)
            routing = routing.observe(variant.name, own, self.window)
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
        """Put the candidate in its parent's place, or beside it. Clusters that its draws did not
        touch inherit the parent's tallies."""
        before = tuple(variants)
        twin = next((v.name for v in before if v.bundle.id == candidate.harness_id), "")
        if twin:
            return Placement(before, routing, f"it is variant {twin} already")
        measured = tally_of(self._runs(episodes, candidate.harness_id))
        tallies = {**routing.counts.get(before[parent].name, {}), **measured}
        if decision == "apply":
            placed = before[parent].applied(candidate.bundle)
            after = (*before[:parent], placed, *before[parent + 1 :])
            return Placement(after, routing.give(placed.name, tallies))
        if why := self._unshown(routing, evidence):
            return Placement(before, routing, why)
        # Unique in a run: a retired variant's name must not come back with other contents.
        fork = Variant(candidate.candidate_id.removeprefix("C-"), candidate.bundle)
        routing = routing.give(fork.name, tallies)
        after = (*before, fork)
        if len(after) <= self.variants:
            return Placement(after, routing)
        # Newest first, so that of equals the newest goes.
        choices = [(self._value(_without(after, v), routing), v) for v in reversed(before)]
        then, lowest = max(choices, key=lambda choice: choice[0])
        now = self._value(before, routing)
        kept = _without(after, lowest)
        if then <= now:
            why = (
                f"all {self.variants} places are taken; the tasks' estimated success is {now:.3f} "
                f"and would be {then:.3f} with it in the place of the lowest variant, {lowest.name}"
            )
            return Placement(before, routing.only([v.name for v in before]), why)
        return Placement(kept, routing.only([v.name for v in kept]))

    def _best(self, variants: Sequence[Variant], routing: Routing, cluster: str) -> int:
        def rate(n: int) -> float:
            if not routing.known(cluster):
                return routing.overall(variants[n].name)
            return routing.estimate(variants[n].name, cluster, self.kappa)

        return max(range(len(variants)), key=lambda n: (rate(n), -n))

    def _value(self, variants: Sequence[Variant], routing: Routing) -> float:
        """Estimated success of the tasks so far, each under the best of these variants."""
        weights = routing.weights()
        total = sum(
            weight * max(routing.estimate(v.name, cluster, self.kappa) for v in variants)
            for cluster, weight in sorted(weights.items())
        )
        return total / (sum(weights.values()) or 1.0)

    def _unshown(self, routing: Routing, evidence: GateEvidence) -> str:
        """Why the fork's gain on the clusters that it would take is not shown; "" where it is."""
        select, confirm = evidence.select, evidence.confirm
        if select is None or confirm is None:
            return "a fork needs a select and a confirm draw"
        gains: dict[str, list[float]] = {}
        for item in select.tasks:
            gains.setdefault(routing.clusters[item.task], []).append(item.d)
        takes = sorted(c for c, d in gains.items() if sum(d) > 0)
        d = [item.d for item in confirm.tasks if routing.clusters[item.task] in takes]
        if len(d) < self.min_tasks:
            return f"{len(d)} tasks of clusters that it would take; {self.min_tasks} are the least"
        lower, _ = bootstrap_bounds(np.array(d), self.level)
        if lower <= 0:
            return f"its gain on {', '.join(takes)} is not shown in confirm (bound {lower:+.3f})"
        return ""

    def _runs(self, episodes: Iterable[Episode], harness_id: str) -> list[tuple[str, bool]]:
        return [
            (self.cluster(run.features), run.success)
            for run in episodes
            if run.scored and run.harness_id == harness_id
        ]


def _without(variants: Sequence[Variant], gone: Variant) -> tuple[Variant, ...]:
    return tuple(v for v in variants if v.name != gone.name)
