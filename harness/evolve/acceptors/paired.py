"""Our gate: paired rollouts, an independent confirmation, a bound on the mean gain; pure functions.

A candidate and the incumbent run the same tasks under the same seeds in a select draw and again in
an independent confirm draw; d = candidate − incumbent pass rate of a task. With S the stable-solved
tasks: R = {x ∈ S : d ≤ −1 in select and ≤ −½ in confirm}, I = {x : d > 0 in both}. Apply iff I ≠ ∅,
R = ∅ and the one-sided lower bound of mean d is > 0 (or > −ε at a clearly lower cost). Fork iff
I ≠ ∅, R ≠ ∅ and there is room. Undecided: the confirm repeats double, up to `repeats_max`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from harness.evolve.parts import Ask, GateEvidence, Need, Part
from harness.evolve.records import Decision, PairedResult, Verdict

NORMAL = NormalDist()
SEED = 20_260  # of the bootstrap: a constant, so that a verdict is a function of its evidence


class Paired(Part):
    """The gate's settings, and the part that asks for draws until `paired_gate` decides.

    repeats: r of each draw. repeats_max: of the confirm draw after doubling. level: the one-sided
    error that a round may make, divided among the `max_confirm` candidates that may be confirmed
    and spent over the doublings.
    evidence: `confirm` bounds mean d by the bootstrap of the confirm draw alone. `both` combines
    the two draws by the inverse normal method, the select draw corrected for the rivals that the
    candidate was chosen among (a two-stage adaptive design): more power from the same rollouts.
    It gives up before the confirm draw where the select draw shows no gain (and no fork is open).
    epsilon, saving: a candidate whose bound is above −epsilon ships when it costs at least
    `saving` less; epsilon 0 turns that off. min_tasks: fewer paired tasks decide nothing.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"labels", "repeats"})

    repeats: int = Field(2, ge=1)
    repeats_max: int = Field(8, ge=1)
    level: float = Field(0.05, gt=0, lt=0.5)
    evidence: Literal["confirm", "both"] = "both"
    epsilon: float = Field(0.0, ge=0, le=1)
    saving: float = Field(0.1, gt=0, lt=1)
    max_confirm: int = Field(1, ge=1)
    min_tasks: int = Field(5, ge=2)
    draws: int = Field(2000, ge=200)

    @model_validator(mode="after")
    def _doubles(self) -> Paired:
        ratio = self.repeats_max / self.repeats
        if ratio < 1 or not math.log2(ratio).is_integer():
            raise ValueError(
                f"repeats_max {self.repeats_max} must be repeats {self.repeats}, doubled none or "
                "more times"
            )
        return self

    def step(self, evidence: GateEvidence) -> Ask | Verdict:
        if evidence.select is None:
            return Ask("select", self.repeats)
        verdict = paired_gate(evidence, self)
        if verdict.decision != "undecided":
            return verdict
        have = 0 if evidence.confirm is None else repeats_of(evidence.confirm)
        return Ask("confirm", have or self.repeats)


def paired_gate(evidence: GateEvidence, config: Paired) -> Verdict:
    """The rule above. `undecided` asks for a confirm draw, or for one twice as large.

    Raises ValueError where the evidence has no select draw.
    """
    select, confirm = evidence.select, evidence.confirm
    if select is None:
        raise ValueError(f"{evidence.candidate_id}: the gate needs a select draw; run one first")
    d_select = select.d_of()
    numbers = {"select_d": select.mean_d, "select_n": float(len(select.tasks))}

    def say(
        decision: Decision, why: str, improved: Sequence[str] = (), regressed: Sequence[str] = ()
    ) -> Verdict:
        return Verdict(
            evidence.candidate_id, decision, (why,), numbers, tuple(improved), tuple(regressed)
        )

    if confirm is None:
        hopeful = sorted(task for task, d in d_select.items() if d > 0)
        if not hopeful:
            return say("reject", "no task did better in the select draw")
        cheaper = config.epsilon > 0 and relative_cost(select) <= -config.saving
        if config.evidence == "both" and select.mean_d <= 0 and not cheaper and not evidence.room:
            return say("reject", f"mean gain {select.mean_d:+.3f} in select", hopeful)
        return say("undecided", f"{len(hopeful)} tasks did better in the select draw", hopeful)

    d_confirm = confirm.d_of()
    both = sorted(set(d_select) & set(d_confirm))
    improved = [task for task in both if d_select[task] > 0 and d_confirm[task] > 0]
    regressed = [
        task
        for task in both
        if task in evidence.stable and d_select[task] <= -1 and d_confirm[task] <= -0.5
    ]
    d = np.array([item.d for item in confirm.tasks])
    level = level_at(repeats_of(confirm), config)
    lower, upper = bootstrap_bounds(d, level, config.draws)
    cost = relative_cost(confirm)
    numbers |= {
        "confirm_d": confirm.mean_d,
        "confirm_n": float(len(confirm.tasks)),
        "confirm_repeats": float(repeats_of(confirm)),
        "lower": lower,
        "upper": upper,
        "level": level,
        "cost": cost,
        "improved": float(len(improved)),
        "regressed": float(len(regressed)),
    }
    last = repeats_of(confirm) >= config.repeats_max
    if regressed:
        if improved and evidence.room > 0:
            return say("fork", "helps some tasks and breaks others", improved, regressed)
        room = "" if evidence.room > 0 else "; there is no room for a variant"
        gain = "" if improved else ", and no task improved in both draws"
        return say(
            "reject",
            f"{len(regressed)} stable-solved tasks broke in both draws{gain}{room}",
            improved,
            regressed,
        )
    if len(confirm.tasks) < config.min_tasks:
        return say(
            "reject",
            f"{len(confirm.tasks)} paired tasks; {config.min_tasks} are the least",
            improved,
        )
    if config.evidence == "both":
        z = combined_z(select, confirm, evidence.rivals)
        numbers["z"], numbers["z_needed"] = z, NORMAL.inv_cdf(1 - level)
        gained = z > numbers["z_needed"] and confirm.mean_d > 0
        shown = f"z = {z:.2f} against {numbers['z_needed']:.2f}"
    else:
        gained = lower > 0
        shown = f"lower bound {lower:+.3f}"
    if improved and gained:
        why = f"mean gain {confirm.mean_d:+.3f} in confirm, {shown}, nothing stable broke"
        return say("apply", why, improved)
    if improved and config.epsilon > 0 and lower > -config.epsilon and cost <= -config.saving:
        why = f"no worse than {config.epsilon:g} (bound {lower:+.3f}) at {-cost:.0%} less cost"
        return say("apply", why, improved)
    if upper <= 0 or confirm.mean_d <= 0:
        return say("reject", f"mean gain {confirm.mean_d:+.3f} in confirm", improved)
    if not last:
        return say("undecided", f"mean gain {confirm.mean_d:+.3f} in confirm, {shown}", improved)
    none = "" if improved else "; no task improved in both draws"
    return say("reject", f"not shown after {repeats_of(confirm)} repeats: {shown}{none}", improved)


def level_at(repeats: int, config: Paired) -> float:
    """The one-sided level of the look at `repeats`: what the spending function sets free since
    the look before, so that the looks together make at most `level / max_confirm`."""
    total = config.level / config.max_confirm
    now = _spent(repeats / config.repeats_max, total)
    before = repeats // 2 if repeats > config.repeats else 0
    return now - _spent(before / config.repeats_max, total)


def _spent(share: float, total: float) -> float:
    """Pocock-type spending (Lan and DeMets 1983): total · ln(1 + (e − 1)·t), t the share run."""
    return total * math.log1p((math.e - 1) * min(max(share, 0.0), 1.0))


def bootstrap_bounds(d: np.ndarray, level: float, draws: int = 2000) -> tuple[float, float]:
    """One-sided bounds at `level` each of the mean of d [tasks], by resampling tasks.

    Percentile bootstrap, deviations widened by √(n/(n−1)) against small samples; seeded, so the
    same d gives the same bounds. (−1, 1) where there are fewer than two tasks.
    """
    n = len(d)
    if n < 2:
        return -1.0, 1.0
    # d takes few values, so a resample of tasks is a multinomial draw of their counts.
    values, counts = np.unique(np.round(d, 12), return_counts=True)
    picked = np.random.default_rng(SEED).multinomial(n, counts / n, size=draws)
    means = picked @ values / n
    centre = float(d.mean())
    low, high = np.quantile(means, [level, 1 - level])
    widen = math.sqrt(n / (n - 1))
    return centre + widen * (float(low) - centre), centre + widen * (float(high) - centre)


def combined_z(select: PairedResult, confirm: PairedResult, rivals: int) -> float:
    """Inverse normal combination of the two draws, weighted by their repeats.

    Stage 1 is corrected for having chosen among `rivals` candidates: p′ = 1 − (1 − p)^rivals
    (Šidák). Standard normal or smaller under no effect (Bauer and Köhne 1994; Lehmacher and
    Wassmer 1999).
    """
    p = NORMAL.cdf(-_z(select))
    first = NORMAL.inv_cdf(min(max(1 - (1 - p) ** rivals, 1e-12), 1 - 1e-12))
    a, b = repeats_of(select), repeats_of(confirm)
    return (-math.sqrt(a) * first + math.sqrt(b) * _z(confirm)) / math.sqrt(a + b)


def _z(result: PairedResult) -> float:
    """Mean d over its standard error; 0 where d does not vary and is 0, ±8 where it is constant."""
    d = np.array([item.d for item in result.tasks])
    if len(d) < 2:
        return 0.0
    error = float(d.std(ddof=1)) / math.sqrt(len(d))
    if error < 1e-12:
        return math.copysign(8.0, d.mean()) if abs(d.mean()) > 1e-12 else 0.0
    return max(-8.0, min(8.0, float(d.mean()) / error))


def relative_cost(result: PairedResult) -> float:
    """ΔC: the candidate's tokens an episode relative to the incumbent's, −0.1 for a tenth less."""
    if result.incumbent_tokens <= 0:
        return 0.0
    return result.candidate_tokens / result.incumbent_tokens - 1


def repeats_of(result: PairedResult) -> int:
    """Repeats that the draw ran: the largest over tasks, as infrastructure errors take some away."""
    return max((item.repeats for item in result.tasks), default=0)
