"""The drift test: is the incumbent still as good as the best harness before it? Pure functions.

Losses below what a gate can see add up over accepted edits. So every few rounds the incumbent and
the best harness so far run paired on the stable set, and two tests speak. Floor: S ≥ S* − δ in this
draw. Evidence over all draws since the best was set: with d = incumbent − best pass rate of a task,
each draw multiplies the e-value of "worse" by the mean over λ of Π(1 − λ·d). Under "not worse" the
product's mean is at most (1 − λ·mean d)ⁿ ≤ 1 (tasks are independent; inequality of the means), so
the e-values make a supermartingale and the chance that it ever reaches 1/level is at most `level`,
however often one looks (Ville's inequality). The mirror image, Π(1 + λ·d), shows a better one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.evolve.records import PairedResult

BETS = (0.1, 0.25, 0.5, 0.75, 0.95)
"""λ: small ones find small losses in many tasks, large ones large losses in few."""

START = (0.0,) * len(BETS)


class DriftTest(BaseModel):
    """floor: δ, and never less than `band` standard errors of the draw's mean d. level: chance of
    ever rolling back an incumbent that is no worse, by the e-value. repeats: paired runs a task.
    min_tasks: a smaller stable set is not tested. max_tasks: of a larger one, a seeded sample."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    floor: float = Field(0.05, gt=0, lt=1)
    band: float = Field(2.5, ge=0)
    level: float = Field(0.05, gt=0, lt=0.5)
    repeats: int = Field(4, ge=1)
    min_tasks: int = Field(5, ge=2)
    max_tasks: int = Field(40, ge=2)


@dataclass(frozen=True, slots=True)
class DriftEvidence:
    """Log wealth of each bet since the best harness was set. draws: drift draws behind it."""

    worse: tuple[float, ...] = START
    better: tuple[float, ...] = START
    draws: int = 0

    @property
    def e_worse(self) -> float:
        """The e-value against "no worse"."""
        return _mixture(self.worse)

    @property
    def e_better(self) -> float:
        """The e-value against "no better"."""
        return _mixture(self.better)

    def add(self, result: PairedResult) -> DriftEvidence:
        """With one more draw. d: of the incumbent against the best."""
        d = [item.d for item in result.tasks]
        worse = tuple(
            log + sum(math.log1p(-bet * x) for x in d)
            for log, bet in zip(self.worse, BETS, strict=True)
        )
        better = tuple(
            log + sum(math.log1p(bet * x) for x in d)
            for log, bet in zip(self.better, BETS, strict=True)
        )
        return DriftEvidence(worse, better, self.draws + 1)


@dataclass(frozen=True, slots=True)
class DriftReport:
    """One drift test. decision: `roll_back` to the best; `best`, the incumbent takes its place as
    the best; `keep` both and go on gathering evidence. reason: with its numbers."""

    variant: str
    best: str
    harness_id: str
    decision: Literal["roll_back", "best", "keep"]
    reason: str
    result: PairedResult
    evidence: DriftEvidence
    floor: float


def drift_test(
    variant: str,
    best: str,
    harness_id: str,
    before: DriftEvidence,
    result: PairedResult,
    test: DriftTest,
) -> DriftReport:
    """The verdict of a draw, with what earlier draws said (`before`)."""
    evidence = before.add(result)
    floor = max(test.floor, test.band * standard_error([item.d for item in result.tasks]))
    needed = 1 / test.level
    mean = result.mean_d
    shown = (
        f"{mean:+.3f} on {len(result.tasks)} stable tasks (floor {-floor:+.3f}); e-value of worse "
        f"{evidence.e_worse:.3g}, of better {evidence.e_better:.3g}, {needed:g} needed"
    )
    decision: Literal["roll_back", "best", "keep"] = "keep"
    if mean < -floor or evidence.e_worse >= needed:
        decision = "roll_back"
    elif evidence.e_better >= needed:
        decision = "best"
    return DriftReport(variant, best, harness_id, decision, shown, result, evidence, floor)


def standard_error(d: Sequence[float]) -> float:
    """Of the mean of d over tasks; 0 for fewer than two."""
    n = len(d)
    if n < 2:
        return 0.0
    mean = sum(d) / n
    return math.sqrt(sum((x - mean) ** 2 for x in d) / (n - 1) / n)


def _mixture(logs: Sequence[float]) -> float:
    """Mean wealth; capped where the number would not fit."""
    top = max(logs)
    return math.exp(min(top, 700.0)) * sum(math.exp(log - top) for log in logs) / len(logs)
