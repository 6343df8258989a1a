"""The report's plain verdict: what the numbers allow one to say, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coevo.compare import MIN_TASKS, Arm, Comparison, PairedDifference
from coevo.live import points
from coevo.records import SplitResult


@dataclass(frozen=True, slots=True)
class Verdict:
    """headline: one sentence. paragraph: the numbers behind it, with their intervals."""

    headline: str
    paragraph: str


def _rate(result: SplitResult) -> str:
    return (
        f"{100 * (result.success or 0):.1f}% [{100 * result.lo:.1f}, {100 * result.hi:.1f}] "
        f"({result.successes} of {result.n})"
    )


def _difference(pair: PairedDifference, sign: int = 1) -> str:
    """The difference with its interval; sign −1 reads the pair the other way round."""
    i = pair.interval
    lo, hi = (i.lo, i.hi) if sign > 0 else (-i.hi, -i.lo)
    return f"{points(sign * i.mean)} points [{points(lo)}, {points(hi)}]"


def _and(words: Sequence[str]) -> str:
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


_READING = {
    "above": "{a} ends above {b}",
    "below": "{a} ends below {b}",
    "within noise": "{a} is within noise of {b}",
    "too few tasks": "too few tasks to tell {a} from {b}",
}


def _focus(comparison: Comparison) -> Arm:
    """The arm the report is about: co-evolution if it ran, else the best one at the end."""
    measured = [arm for arm in comparison.arms if arm.final and arm.final.n]
    for arm in measured:
        if arm.key == "coevolve":
            return arm
    return max(measured, key=lambda arm: (arm.final.success or 0.0) if arm.final else 0.0)


def _seen_from(focus: Arm, pair: PairedDifference) -> tuple[str, str]:
    """(other arm, conclusion about the focus) of a pair that the focus takes part in."""
    if pair.a == focus.key:
        return pair.b, pair.conclusion
    flip = {"above": "below", "below": "above"}
    return pair.a, flip.get(pair.conclusion, pair.conclusion)


def verdict(comparison: Comparison) -> Verdict:
    """Headline and paragraph for a comparison.

    'above' and 'below' are said only where the 95% interval of the paired difference excludes 0
    and at least MIN_TASKS tasks stand behind it.
    """
    measured = [arm for arm in comparison.arms if arm.final and arm.final.n]
    if not measured:
        return Verdict(
            "No held-out result yet.",
            "None of these runs has a scored held-out episode, so nothing can be said about them.",
        )
    focus = _focus(comparison)
    if len(measured) == 1:
        return _alone(focus)

    labels = {arm.key: arm.label for arm in comparison.arms}
    own = [pair for pair in comparison.pairs if focus.key in (pair.a, pair.b)]
    found: dict[str, list[str]] = {}
    for pair in own:
        other, conclusion = _seen_from(focus, pair)
        found.setdefault(conclusion, []).append(_inside(labels[other]))
    parts = [
        _READING[conclusion].format(a=focus.label if i == 0 else "it", b=_and(found[conclusion]))
        for i, conclusion in enumerate(c for c in _READING if c in found)
    ]
    headline = "; ".join(parts)
    headline = headline[:1].upper() + headline[1:] + "." if headline else "No pairs to compare."

    rates = _and([f"{_inside(arm.label)} {_rate(arm.final)}" for arm in measured if arm.final])
    paragraph = f"Share of the same held-out episodes solved, with 95% intervals: {rates}."
    if own:
        differences = []
        for pair in own:
            other, _ = _seen_from(focus, pair)
            sign = 1 if pair.a == focus.key else -1
            differences.append(
                f"{_difference(pair, sign)} against {_inside(labels[other])}, {_reading(pair)}"
            )
        tasks = min(pair.interval.n_tasks for pair in own)
        paragraph += (
            f" {focus.label}, paired by task and seed over {tasks} tasks, ends at "
            f"{'; '.join(differences)}."
        )
    return Verdict(headline, paragraph)


def _reading(pair: PairedDifference) -> str:
    if pair.conclusion == "too few tasks":
        return f"which fewer than {MIN_TASKS} tasks cannot decide"
    if pair.conclusion == "within noise":
        return "within noise (the interval includes 0)"
    return "beyond noise (the interval excludes 0)"


def _alone(arm: Arm) -> Verdict:
    assert arm.final is not None
    if arm.gain is None or arm.initial is None:
        return Verdict(
            f"{arm.label} was evaluated once.",
            f"It solved {_rate(arm.final)} held-out episodes; with no second evaluation "
            "there is nothing to compare this with.",
        )
    reading = {
        "above": "ends above its start",
        "below": "ends below its start",
        "within noise": "is within noise of its start",
        "too few tasks": "ran on too few tasks to tell its end from its start",
    }[arm.gain.conclusion]
    return Verdict(
        f"{arm.label} {reading}.",
        f"It began at {_rate(arm.initial)} and ended at {_rate(arm.final)} on the same held-out "
        f"episodes: {_difference(arm.gain)}, paired by task and seed over "
        f"{arm.gain.interval.n_tasks} tasks; {_reading(arm.gain)}. Without another arm this says "
        "nothing about what caused it.",
    )


def _inside(label: str) -> str:
    """A label in the middle of a sentence."""
    return label[:1].lower() + label[1:] if label[1:2].islower() else label
