"""From two harnesses' episodes to paired differences: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.evolve.parts import EvolutionInfraError
from harness.evolve.records import Episode, EvalRequest, PairedResult, PairedTask, Purpose


class PairingError(ValueError):
    """Episodes that do not pair: a run twice, or a harness that the comparison does not know."""


class PairsLost(EvolutionInfraError):
    """Infrastructure errors took away too many pairs for a verdict."""


def paired_draw(
    runs: Sequence[Episode],
    candidate: str,
    incumbent: str,
    request: EvalRequest,
    min_pairs: float,
    name: str,
) -> PairedResult:
    """Pair the runs of one draw, or of all draws like it so far.

    Raises PairsLost, saying `name`, where less than the share `min_pairs` of the pairs is left."""
    result = pair(runs, candidate, incumbent, request.purpose)
    asked = max(len({(run.task, run.seed) for run in runs}), len(request.tasks) * request.repeats)
    if result.pairs < min_pairs * asked:
        raise PairsLost(
            f"{name}: infrastructure errors left {result.pairs} of {asked} {request.purpose} pairs; "
            f"{min_pairs:.0%} are the least for a verdict. Mend the infrastructure and resume the "
            "round"
        )
    return replace(result, asked=asked, lost=asked - result.pairs)


def pair(
    episodes: Iterable[Episode], candidate: str, incumbent: str, purpose: Purpose
) -> PairedResult:
    """Pair the runs of two harness ids by (task, seed); other harnesses' runs are passed over.

    A pair of which one run is missing or an infrastructure error is lost, never a failure. The
    order of `episodes` does not matter. Raises PairingError when a run occurs twice or both ids
    are the same.
    """
    if candidate == incumbent:
        raise PairingError(f"harness {candidate[:12]} cannot be paired with itself")
    runs: dict[str, dict[tuple[str, int], Episode]] = {candidate: {}, incumbent: {}}
    for episode in episodes:
        side = runs.get(episode.harness_id)
        if side is None:
            continue
        at = (episode.task, episode.seed)
        if at in side:
            raise PairingError(
                f"task {episode.task!r} seed {episode.seed}: harness {episode.harness_id[:12]} ran "
                "twice in one draw; one run a (task, seed) is expected"
            )
        side[at] = episode
    asked = set(runs[candidate]) | set(runs[incumbent])
    both = sorted(set(runs[candidate]) & set(runs[incumbent]))
    kept = [at for at in both if all(side[at].scored for side in runs.values())]
    by_task: dict[str, list[tuple[str, int]]] = {}
    for at in kept:
        by_task.setdefault(at[0], []).append(at)
    tasks = tuple(
        PairedTask(
            task,
            candidate=_rate([runs[candidate][at] for at in pairs]),
            incumbent=_rate([runs[incumbent][at] for at in pairs]),
            repeats=len(pairs),
        )
        for task, pairs in sorted(by_task.items())
    )
    return PairedResult(
        purpose,
        tasks,
        candidate_tokens=_tokens([runs[candidate][at] for at in kept]),
        incumbent_tokens=_tokens([runs[incumbent][at] for at in kept]),
        lost=len(asked) - len(kept),
        asked=len(asked),
    )


def _rate(runs: Sequence[Episode]) -> float:
    return sum(run.success for run in runs) / len(runs)


def _tokens(runs: Sequence[Episode]) -> float:
    return sum(run.tokens for run in runs) / len(runs) if runs else 0.0
