"""What routing remembers: how often each variant solved each cluster of tasks.

Source: HarnessX §4 (variant isolation). Clusters come from features that unseen tasks have too,
never from task ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

Tally = tuple[float, float]
"""(successes, runs); fractions where old runs were scaled down."""


@dataclass(frozen=True, slots=True)
class Routing:
    """counts: variant name -> cluster -> tally. clusters: task key -> its cluster, of every task
    that ran."""

    counts: Mapping[str, Mapping[str, Tally]] = field(default_factory=dict)
    clusters: Mapping[str, str] = field(default_factory=dict)

    def observe(self, name: str, runs: Iterable[tuple[str, bool]], window: int) -> Routing:
        """Add runs of a variant, as (cluster, success). A tally over `window` runs is scaled down
        to it, so that what a policy did long ago fades."""
        own = dict(self.counts.get(name, {}))
        for cluster, tally in tally_of(runs).items():
            old = own.get(cluster, (0.0, 0.0))
            solved, n = old[0] + tally[0], old[1] + tally[1]
            scale = min(1.0, window / n)
            own[cluster] = (solved * scale, n * scale)
        return replace(self, counts={**self.counts, name: own})

    def name_tasks(self, clusters: Mapping[str, str]) -> Routing:
        """Remember the tasks' clusters."""
        return replace(self, clusters={**self.clusters, **clusters})

    def give(self, name: str, tallies: Mapping[str, Tally]) -> Routing:
        """Set the variant's tallies."""
        return replace(self, counts={**self.counts, name: dict(tallies)})

    def only(self, names: Collection[str]) -> Routing:
        """Forget other variants."""
        return replace(self, counts={k: v for k, v in self.counts.items() if k in names})

    def overall(self, name: str) -> float:
        """p̂_v, the variant's share of solved runs, with one success and one failure added."""
        tallies = self.counts.get(name, {}).values()
        return (sum(s for s, _ in tallies) + 1) / (sum(n for _, n in tallies) + 2)

    def estimate(self, name: str, cluster: str, kappa: float) -> float:
        """p̂(v, c) = (s + κ·p̂_v) / (n + κ); p̂_v where the variant never met the cluster."""
        solved, n = self.counts.get(name, {}).get(cluster, (0.0, 0.0))
        return (solved + kappa * self.overall(name)) / (n + kappa)

    def known(self, cluster: str) -> bool:
        """Whether any variant has met the cluster."""
        return any(cluster in tallies for tallies in self.counts.values())

    def weights(self) -> dict[str, float]:
        """cluster -> its tasks that ran."""
        out: dict[str, float] = {}
        for cluster in self.clusters.values():
            out[cluster] = out.get(cluster, 0.0) + 1
        return out


def tally_of(runs: Iterable[tuple[str, bool]]) -> dict[str, Tally]:
    """(cluster, success) runs, counted."""
    out: dict[str, Tally] = {}
    for cluster, success in runs:
        solved, n = out.get(cluster, (0.0, 0.0))
        out[cluster] = (solved + success, n + 1)
    return out
