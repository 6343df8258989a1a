"""What became of a phase's episodes: outcomes by class, and whether short ones came first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollout.trajectory import Trajectory

QUANTILES = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class PhaseStats:
    """outcomes: episodes by outcome class. length_bias: see `length_bias`; {} for no episodes."""

    outcomes: Mapping[str, int]
    length_bias: Mapping[float, float]


def phase_stats(asked: Sequence[Trajectory], finished: Sequence[Trajectory]) -> PhaseStats:
    """asked: every episode of the phase. finished: those that ended, in the order in which they did."""
    return PhaseStats(
        outcomes=dict(sorted(Counter(t.outcome.kind for t in asked).items())),
        length_bias=length_bias(
            [t.cost.sampled_tokens for t in asked], [t.cost.sampled_tokens for t in finished]
        ),
    )


def length_bias(
    asked: Sequence[int], finished: Sequence[int], quantiles: Sequence[float] = QUANTILES
) -> dict[float, float]:
    """Mean length of what had finished when the share q of the phase had, over that of all asked.

    Lengths in sampled tokens; `finished` in order of time. Below 1 short episodes come first: a
    consumer that cut the phase off there would train on episodes shorter than the policy's own by
    that factor. At q = 1 it is 1 unless episodes were lost. {} where nothing was sampled.
    """
    if not finished or not sum(asked):
        return {}
    mean = sum(asked) / len(asked)
    out = {}
    for q in quantiles:
        first = finished[: max(1, round(q * len(finished)))]
        out[q] = sum(first) / len(first) / mean
    return out
