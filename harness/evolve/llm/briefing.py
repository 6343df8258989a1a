"""What the roles of evolution read of a round, as text: only what evolution itself may see.

Tasks are opaque keys. Anchors are given short names here, because the reference in one may hold a
task's id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from harness.bundle import Bundle
from harness.change import describe, render_diff
from harness.edit import AddComponent, DeleteFile, PutFile, diff
from harness.edit_json import to_json
from harness.evolve.meta import Memory
from harness.evolve.records import Evidence, Landscape
from harness.shorten import head_and_tail

MAX_HYPOTHESIS = 200


class Anchors:
    """Short names of anchors, both ways."""

    def __init__(self) -> None:
        self._short: dict[str, str] = {}
        self._whole: dict[str, str] = {}

    def name(self, anchor: str) -> str:
        """The anchor's short name, `E` and a number."""
        if anchor not in self._short:
            name = f"E{len(self._short) + 1}"
            self._short[anchor], self._whole[name] = name, anchor
        return self._short[anchor]

    def anchor(self, name: str) -> str:
        """The anchor of that name. KeyError where there is none."""
        return self._whole[name]

    def __contains__(self, name: str) -> bool:
        return name in self._whole

    def __len__(self) -> int:
        return len(self._whole)


def harness_text(bundle: Bundle) -> str:
    """The components, a line each, and the files."""
    lines = [f"- {describe(AddComponent(item)).removeprefix('add ')}" for item in bundle.components]
    lines += [f"- file {path} ({len(f.content)} bytes)" for path, f in bundle.files.items()]
    return "\n".join(lines) or "- (empty)"


def edit_text(before: Bundle, after: Bundle) -> str:
    """The whole edit: its diff, and every changed component in full (a diff shortens parameters)."""
    whole = [
        json.dumps(to_json(edit)[0], ensure_ascii=False)
        for edit in diff(before, after)
        if not isinstance(edit, PutFile | DeleteFile)
    ]
    return render_diff(before, after) + "".join(f"in full: {line}\n" for line in whole)


def evidence_text(items: Iterable[Evidence], anchors: Anchors) -> str:
    """A paragraph a task."""
    out = []
    for item in items:
        lines = [f"task {item.task}: {item.passed} of {item.runs} runs passed ({item.verdict})"]
        if item.instruction:
            lines.append(f"  instruction: {item.instruction}")
        if item.categories:
            lines.append(f"  failure: {', '.join(item.categories)}")
        if item.finding:
            lines.append(f"  finding: {item.finding}")
        if item.components:
            lines.append(f"  components: {', '.join(item.components)}")
        if item.history:
            lines.append(f"  touched before by: {', '.join(item.history)}")
        lines += [f"  [{anchors.name(e.anchor)}] {e.text}" for e in item.excerpts]
        out.append("\n".join(lines))
    return "\n".join(out) or "(none)"


def ledger_text(memory: Memory, last: int = 12) -> str:
    """The latest judged candidates, a line each: what was tried and what it did."""
    lines = []
    for record in memory.history[-last:]:
        score = "" if record.delta_score is None else f", score {record.delta_score:+.3f}"
        cost = "" if record.delta_cost is None else f", cost {record.delta_cost:+.1%}"
        hits = f", {record.hits} of {record.predicted} predictions true" if record.predicted else ""
        why = head_and_tail(record.hypothesis, MAX_HYPOTHESIS, tail=0)
        lines.append(
            f"- round {record.round} {record.candidate_id} ({', '.join(record.kinds)}): "
            f"{record.decision}{score}{cost}{hits}; {why}"
        )
        if record.regressed:
            lines.append(f"  it broke {', '.join(record.regressed)}")
    return "\n".join(lines) or "- nothing was judged yet"


def standing_text(landscape: Landscape) -> str:
    """How the kinds of edit stand."""
    rates = [f"{kind} {rate:.2f}" for kind, rate in sorted(landscape.reputation.items())]
    return "\n".join(
        [
            f"kinds never tried: {_listed(landscape.untried)}",
            f"acceptance rate a kind (smoothed): {_listed(rates)}",
            f"kinds that may not ship now: {_listed(landscape.held_back)}",
            f"tasks that the last shipped edit broke: {_listed(landscape.regressed)}",
        ]
    )


def objectives_text(landscape: Landscape) -> str:
    """The objectives, heaviest first."""
    lines = []
    for number, item in enumerate(landscape.objectives, 1):
        lines.append(f"{number}. {item.category} (weight {item.weight:g}): {_listed(item.tasks)}")
        if item.direction:
            lines.append(f"   direction: {item.direction}")
    return "\n".join(lines) or "(none)"


def section(title: str, text: str) -> str:
    return f"## {title}\n{text}\n"


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items) or "none"
