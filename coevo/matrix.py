"""The harness × policy matrix of a run, and what of its gain came from which (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from coevo import stats
from coevo.records import EpisodeResult, Evaluation, Record, SplitResult, Tokens, VersionedRecord

FILE = "matrix.json"


class MatrixHarness(Record):
    """A row. rounds: the chosen rounds that began with this harness."""

    id: str
    rounds: tuple[int, ...]


class MatrixPolicy(Record):
    """A column. fingerprint: of its weights; "" where the run recorded none (a hosted model)."""

    version: int
    fingerprint: str
    rounds: tuple[int, ...]


class MatrixCell(Record):
    """harness, policy: indices of row and column. source: `run` where the run itself had measured
    this pair. file: its episodes, an evaluation, relative to the run."""

    harness: int
    policy: int
    result: SplitResult
    source: Literal["run", "matrix"]
    file: str


class Effect(Record):
    """A difference of success shares: mean over tasks, 95% percentile bootstrap over tasks."""

    mean: float
    lo: float
    hi: float


class Decomposition(Record):
    """What the gain from (H0, M0) to (H1, M1) is made of, paired over tasks.

    total = H1M1 − H0M0 = harness + model.
    harness = ½[(H1M0 − H0M0) + (H1M1 − H0M1)] and model = ½[(H0M1 − H0M0) + (H1M1 − H1M0)]: main
    effects, each holding half of the interaction.
    interaction = (H1M1 − H1M0) − (H0M1 − H0M0): what one is worth more beside the other.
    harness_alone = H1M0 − H0M0, model_alone = H0M1 − H0M0: with the interaction they sum to total.
    rows, columns: indices of (H0, H1) and (M0, M1). n_tasks: scored under all four.
    """

    rows: tuple[int, int]
    columns: tuple[int, int]
    n_tasks: int
    total: Effect
    harness: Effect
    model: Effect
    interaction: Effect
    harness_alone: Effect
    model_alone: Effect


class Matrix(VersionedRecord):
    """matrix.json: cells of every row and column, and the decomposition over its corners (None where
    no task was scored in all four)."""

    kind: ClassVar[str] = "matrix"
    run: str
    split: str
    n: int
    seed: int
    harnesses: tuple[MatrixHarness, ...]
    policies: tuple[MatrixPolicy, ...]
    cells: tuple[MatrixCell, ...]
    decomposition: Decomposition | None
    tokens: Tokens = Tokens()
    notes: tuple[str, ...] = ()

    def cell(self, harness: int, policy: int) -> MatrixCell:
        return next(c for c in self.cells if (c.harness, c.policy) == (harness, policy))


class PairFile(VersionedRecord):
    """A measured pair as it is kept: `about` holds all that its episodes depend on."""

    kind: ClassVar[str] = "measured pair"
    about: dict[str, Any]
    evaluation: Evaluation


def restricted(
    evaluation: Evaluation, harness_id: str, n: int, seeds: Mapping[str, int]
) -> Evaluation | None:
    """The first n tasks of an evaluation, under the given seed each, where one harness ran them all;
    None where it holds no such episodes. seeds: task id -> seed; its order is that of the tasks."""
    by_slot = {
        (episode.task_id, episode.seed): (episode, served)
        for episode, served in zip(evaluation.episodes, evaluation.harnesses(), strict=True)
    }
    chosen: list[EpisodeResult] = []
    for slot in list(seeds.items())[:n]:
        episode, served = by_slot.get(slot, (None, ""))
        if episode is None or served != harness_id:
            return None
        chosen.append(episode)
    if len(chosen) < n:
        return None
    return evaluation.model_copy(
        update={"harness_id": harness_id, "episodes": tuple(chosen), "variants": {}}
    )


def decompose(
    corners: Mapping[tuple[int, int], Sequence[EpisodeResult]],
    rows: tuple[int, int],
    columns: tuple[int, int],
) -> Decomposition | None:
    """Of the four corners, (row, column) -> its episodes. None where no task was scored in all."""
    scored = {
        at: {(e.task_id, e.seed): float(e.success) for e in episodes if e.scored}
        for at, episodes in corners.items()
    }
    places = [(row, column) for row in rows for column in columns]
    slots = sorted(set.intersection(*(set(scored[at]) for at in places)))
    if not slots:
        return None
    h0m0, h0m1, h1m0, h1m1 = (np.array([scored[at][slot] for slot in slots]) for at in places)
    tasks = [task for task, _ in slots]
    nothing = np.zeros(len(slots))

    def effect(values: np.ndarray) -> Effect:
        found = stats.paired_bootstrap(values, nothing, tasks)
        return Effect(mean=found.mean, lo=found.lo, hi=found.hi)

    return Decomposition(
        rows=rows,
        columns=columns,
        n_tasks=len(set(tasks)),
        total=effect(h1m1 - h0m0),
        harness=effect(((h1m0 - h0m0) + (h1m1 - h0m1)) / 2),
        model=effect(((h0m1 - h0m0) + (h1m1 - h1m0)) / 2),
        interaction=effect((h1m1 - h1m0) - (h0m1 - h0m0)),
        harness_alone=effect(h1m0 - h0m0),
        model_alone=effect(h0m1 - h0m0),
    )
