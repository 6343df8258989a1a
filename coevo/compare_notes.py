"""What must be said beside the numbers of a comparison: what the intervals hold, what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coevo.comparable import OWN_KEYS, differing, flatten
from coevo.compare_splits import PairedDifference, slots
from coevo.live import percent, quantity, with_interval
from coevo.runs import Run

if TYPE_CHECKING:
    from coevo.compare import Arm


def notes_on(arms: Sequence[Arm], pairs: Sequence[PairedDifference]) -> tuple[str, ...]:
    notes = []
    seeds = max(len(arm.runs) for arm in arms)
    if seeds == 1:
        notes.append(
            "One run an arm: the intervals cover which tasks were drawn, not how another training "
            "seed would have ended."
        )
    else:
        notes.append(
            f"Runs of an arm are pooled; intervals are over tasks and run seeds, both resampled. "
            f"{seeds} seeds say little about others where they disagree: see each by itself."
        )
    if not any(arm.repeats[1] for arm in arms if arm.mode != "best_of_n"):
        notes.append(
            "Each held-out task ran once: pass@k, pass^k and the share of tasks that flip need "
            "evaluation.repeats of 2 or more."
        )
    else:
        notes.append("McNemar takes the runs of a task as independent; the intervals do not.")
    if len(pairs) > 1:
        notes.append(
            f"Each of the {len(pairs)} intervals holds at 95% alone; they are not corrected for "
            "their number."
        )
    notes.extend(_best_of_n(run) for arm in arms for run in arm.runs if run.best_of_n is not None)
    going = [run.name for arm in arms for run in arm.runs if not run.finished]
    if going:
        notes.append(f"Not finished, shown as far as it goes: {', '.join(going)}.")
    measured = [arm for arm in arms if arm.final_round is not None]
    if len({arm.final_round for arm in measured}) > 1:
        ends = ", ".join(f"{arm.label} at round {arm.final_round}" for arm in measured)
        notes.append(f"The arms were last evaluated at different rounds: {ends}.")
    parted = {len(slots(arm.lasts)) for arm in arms if arm.final is not None}
    if len(parted) > 1:
        notes.append(
            f"The last evaluations hold {min(parted)} to {max(parted)} episodes; differences use "
            "the episodes that both arms ran."
        )
    runs = [run for arm in arms for run in arm.runs]
    base = flatten(runs[0].config)
    other = {
        key for run in runs[1:] for key, _, _ in differing(base, flatten(run.config))
    } - OWN_KEYS
    if other:
        notes.append(f"The configurations also differ in: {', '.join(sorted(other))}.")
    dropped = sum(pair.dropped for pair in pairs)
    if dropped:
        notes.append(
            f"{dropped} pairs were left out because of an infrastructure error on either side."
        )
    notes.extend(problem for arm in arms for run in arm.runs for problem in run.problems)
    return tuple(notes)


def _best_of_n(run: Run) -> str:
    """What a best-of-n result is, its pass@k, and how far its budget was matched."""
    record = run.best_of_n
    assert record is not None
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k < record.n] + [record.n]
    rates = ", ".join(f"pass@{k} {percent(record.pass_at(k))}" for k in ks)
    text = (
        f"{run.name} ran each held-out task {record.n} times and let the verifier choose: an upper "
        f"bound on choosing. A single run {with_interval(record.single())}; {rates}."
    )
    if record.budget is None:
        return f"{text} {quantity(record.tokens.total)} tokens of repeats, matched to no run."
    gap = record.tokens.total - record.budget
    share = f" ({100 * gap / record.budget:+.1f}%)" if record.budget else ""
    return (
        f"{text} Its repeats took {record.tokens.total:,} tokens; {record.matched} spent "
        f"{record.budget:,} on rollouts and evolution: a difference of {gap:+,}{share}."
    )
