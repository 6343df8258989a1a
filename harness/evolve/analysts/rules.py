"""The rule analyst: failure categories read off the traces, no language model.

Source: HarnessX §4 (Digester); actionability as in methods: all runs fail 1.0, some 0.8, passes
but fragile 0.3, else 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from pydantic import Field

from harness.bundle import Bundle
from harness.evolve.analysts.size import MAX_DIGEST_TOKENS, tokens, within
from harness.evolve.parts import Need, Part, Situation
from harness.evolve.records import Digest, Episode, Evidence, Excerpt, TraceStep

CATEGORIES: dict[str, tuple[str, ...]] = {
    "harness_error": (),
    "contract_violation": (),
    "parse_error": ("output_plumbing", "prompt"),
    "invalid_action": ("output_plumbing", "control_flow", "prompt"),
    "loop": ("control_flow", "memory", "context_mgmt"),
    "wrong_object": ("control_flow", "prompt"),
    "no_progress": ("memory", "control_flow", "context_mgmt"),
    "gave_up": ("prompt", "control_flow"),
    "truncated": ("config", "context_mgmt", "control_flow"),
    "unknown": (),
}
"""Failure category -> kinds of component that usually answer for it; the first that fits leads."""


class Rules(Part):
    """Digests episodes by the rules below.

    invalid_share: share of steps with an inadmissible action that makes `invalid_action`.
    loop_repeats: the same (action, observation) that often makes `loop`. stall: that many steps
    without a new observation make `no_progress`. object_verbs: with `take`, an action `take X …`
    whose X the instruction does not name makes `wrong_object`; empty turns the rule off.
    max_excerpts, max_tasks, max_digest_tokens: bounds of the digest, the least actionable tasks
    left out first.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"labels"})

    invalid_share: float = Field(0.3, gt=0, le=1)
    loop_repeats: int = Field(3, ge=2)
    stall: int = Field(6, ge=2)
    object_verbs: tuple[str, ...] = ()
    max_excerpts: int = Field(2, ge=0)
    max_tasks: int = Field(200, ge=1)
    max_digest_tokens: int = Field(MAX_DIGEST_TOKENS, ge=100)

    async def digest(self, at: Situation) -> Digest:
        by_task: dict[str, list[Episode]] = {}
        for episode in at.episodes:
            if episode.scored:
                by_task.setdefault(episode.task, []).append(episode)
        found = [self._evidence(runs, at) for _, runs in sorted(by_task.items())]
        found.sort(key=lambda item: (-item.actionability, item.task))
        kept = within(found[: self.max_tasks], self.max_digest_tokens)
        raw = sum(episode.tokens for runs in by_task.values() for episode in runs)
        return Digest(kept, raw, tokens(kept))

    def categories(self, episode: Episode) -> tuple[str, ...]:
        """What went wrong in one run, in the order of CATEGORIES; for a pass, troubles only."""
        checks: dict[str, Callable[[], bool]] = {
            "harness_error": lambda: episode.outcome == "harness_error",
            "contract_violation": lambda: episode.outcome == "contract_violation",
            "parse_error": lambda: (
                episode.outcome == "agent_error" or _share(episode.trace, "no_action") >= 0.3
            ),
            "invalid_action": lambda: _share(episode.trace, "invalid") >= self.invalid_share,
            "loop": lambda: _most_repeated(episode.trace) >= self.loop_repeats,
            "wrong_object": lambda: self._wrong_object(episode),
            "no_progress": lambda: _longest_stall(episode.trace) >= self.stall,
            "gave_up": lambda: not episode.success and episode.outcome == "completed",
            "truncated": lambda: not episode.success and episode.outcome == "truncated",
        }
        seen = tuple(name for name, check in checks.items() if check())
        return seen or (() if episode.success else ("unknown",))

    def _evidence(self, runs: Sequence[Episode], at: Situation) -> Evidence:
        passed = sum(run.success for run in runs)
        troubled = [run for run in runs if not run.success] or list(runs)
        counts = Counter(name for run in troubled for name in self.categories(run))
        order = list(CATEGORIES)
        names = tuple(sorted(counts, key=lambda name: (-counts[name], order.index(name))))
        excerpts: tuple[Excerpt, ...] = ()
        if passed == 0:
            verdict, actionability = "failed", 1.0
        elif passed < len(runs):
            verdict, actionability = "flaky", 0.8
        elif names:
            verdict, actionability = "fragile", 0.3
        else:
            verdict, actionability = "solid", 0.0
        if actionability > 0:
            excerpts = tuple(_excerpts(troubled[0], self.max_excerpts))
        return Evidence(
            task=runs[0].task,
            instruction=runs[0].instruction,
            runs=len(runs),
            passed=passed,
            verdict=verdict,  # type: ignore[arg-type]
            category=names[0] if names else "",
            categories=names,
            components=implicated(names, at.incumbent),
            excerpts=excerpts,
            actionability=actionability,
            history=at.memory.shipped_for(runs[0].task),
        )

    def _wrong_object(self, episode: Episode) -> bool:
        words = set(re.findall(r"[\w']+", episode.instruction.lower()))
        for step in episode.trace:
            verb, _, rest = step.action.lower().partition(" ")
            named = rest.split()[:1]
            took = verb in self.object_verbs and named and "invalid" not in step.flags
            if took and not words.intersection(named):
                return True
        return False


def implicated(categories: Iterable[str], bundle: Bundle) -> tuple[str, ...]:
    """Ids of the bundle's components whose kind usually answers for these categories."""
    kinds = {kind for name in categories for kind in CATEGORIES[name]}
    return tuple(item.id for item in bundle.components if item.kind in kinds)


def _share(trace: Sequence[TraceStep], flag: str) -> float:
    return sum(flag in step.flags for step in trace) / len(trace) if trace else 0.0


def _most_repeated(trace: Sequence[TraceStep]) -> int:
    counts = Counter((step.action, step.observation) for step in trace)
    return max(counts.values(), default=0)


def _longest_stall(trace: Sequence[TraceStep]) -> int:
    """Most steps in a row whose observation had been seen before."""
    seen: set[str] = set()
    longest = now = 0
    for step in trace:
        now = now + 1 if step.observation in seen else 0
        seen.add(step.observation)
        longest = max(longest, now)
    return longest


def _excerpts(episode: Episode, most: int) -> Iterable[Excerpt]:
    """The first flagged step and the last steps, as anchors."""
    flagged = [step for step in episode.trace if step.flags][:1]
    last = [step for step in episode.trace[-most:] if step not in flagged] if most else []
    for step in (flagged + last)[:most]:
        flags = f" [{', '.join(step.flags)}]" if step.flags else ""
        text = f"{step.action} -> {step.observation}{flags}"
        yield Excerpt(f"{episode.ref or episode.task}#step={step.step}", text[:160])
