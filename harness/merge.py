"""Three-way merge of bundles, by component and by file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from harness.build import class_group
from harness.bundle import Bundle, BundleError, Component, File
from harness.jsonvalue import canonical

Part = TypeVar("Part", Component, File)


@dataclass(frozen=True, slots=True)
class Conflict:
    """A part that both sides changed differently; None where a side does not have it.

    what: component | file | group. name: the id, the path or the singleton group.
    """

    what: str
    name: str
    base: Component | File | None
    ours: Component | File | None
    theirs: Component | File | None

    def __str__(self) -> str:
        sides = (("base", self.base), ("ours", self.ours), ("theirs", self.theirs))
        return f"{self.what} {self.name!r}\n" + "\n".join(
            f"  {side:<6} {_show(part)}" for side, part in sides
        )


class MergeConflict(ValueError):
    """A merge that is not clean. `conflicts`: every one; `problems`: why the union is no bundle."""

    def __init__(self, conflicts: Iterable[Conflict], problems: Iterable[str] = ()) -> None:
        self.conflicts = tuple(conflicts)
        self.problems = tuple(problems)
        lines = []
        if self.conflicts:
            lines += ["both sides changed the same part; choose one:", *map(str, self.conflicts)]
        if self.problems:
            lines += ["both sides together are no bundle:"]
            lines += [f"- {text}" for text in self.problems]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type, tuple[tuple[Conflict, ...], tuple[str, ...]]]:
        return type(self), (self.conflicts, self.problems)


def merge(base: Bundle, ours: Bundle, theirs: Bundle) -> Bundle:
    """The bundle with the changes of both sides since `base`.

    A component, with all its parameters, is one unit, and so is a file. A unit that both sides
    changed, unless alike, is a conflict; so is a singleton group that two different newcomers
    would fill. Raises MergeConflict with all of them, or when the union is no valid bundle.
    """
    conflicts: list[Conflict] = []
    components = _merge_parts("component", _by_id(base), _by_id(ours), _by_id(theirs), conflicts)
    files = _merge_parts("file", base.files, ours.files, theirs.files, conflicts)
    conflicts += _group_conflicts(base, ours, theirs, components)
    if conflicts:
        raise MergeConflict(conflicts)
    try:
        return Bundle(tuple(components.values()), files)
    except BundleError as error:
        raise MergeConflict((), error.problems) from error


def _merge_parts(
    what: str,
    base: Mapping[str, Part],
    ours: Mapping[str, Part],
    theirs: Mapping[str, Part],
    conflicts: list[Conflict],
) -> dict[str, Part]:
    out: dict[str, Part] = {}
    for name in sorted({*base, *ours, *theirs}):
        was, our, their = base.get(name), ours.get(name), theirs.get(name)
        if our in (was, their):
            kept = their
        elif their == was:
            kept = our
        else:
            conflicts.append(Conflict(what, name, was, our, their))
            continue
        if kept is not None:
            out[name] = kept
    return out


def _group_conflicts(
    base: Bundle, ours: Bundle, theirs: Bundle, merged: Mapping[str, Component]
) -> list[Conflict]:
    """Groups that hold several components in the union, though one at most on either side."""
    held = [_by_group(bundle) for bundle in (base, ours, theirs)]
    conflicts = []
    for group in sorted({*held[1], *held[2]}):
        sides = [side.get(group, []) for side in held]
        kept = {item.id for side in sides[1:] for item in side if merged.get(item.id) == item}
        if len(kept) > max(len(side) for side in sides[1:]):
            first = [side[0] if side else None for side in sides]
            conflicts.append(Conflict("group", group, *first))
    return conflicts


def _by_id(bundle: Bundle) -> Mapping[str, Component]:
    return {item.id: item for item in bundle.components}


def _by_group(bundle: Bundle) -> dict[str, list[Component]]:
    out: dict[str, list[Component]] = {}
    for item in bundle.components:
        group = class_group(item, bundle.files)
        if group is not None:
            out.setdefault(group, []).append(item)
    return out


def _show(part: Component | File | None) -> str:
    if part is None:
        return "(absent)"
    if isinstance(part, Component):
        return canonical(part.record())
    mode = ", executable" if part.executable else ""
    return f"{len(part.content)} bytes{mode}: {part.content[:60]!r}"
