"""Tasks and their splits: what is to be done, who may see which part of it, and who may read which.

Splits that are measured are sealed: `TaskSplits` gives them only to the holder of its one key, and
tells every such read.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from harness.events import TaskView

Split = Literal["evolve", "valid_seen", "heldout", "ood"]
SPLITS: tuple[Split, ...] = ("evolve", "valid_seen", "heldout", "ood")
SEALED: frozenset[Split] = frozenset({"valid_seen", "heldout", "ood"})
"""Splits that are measured, never learned from."""

SHARES: Mapping[Split, float] = MappingProxyType({"evolve": 0.6, "heldout": 0.25, "ood": 0.15})


@dataclass(frozen=True, slots=True)
class Task:
    """One task of an environment.

    id: unique within the environment; the group key of GRPO; never shown to a harness.
    features: properties that unseen tasks have too (task type, room): routing clusters use them.
    payload: the environment's private specification (may hold the answer); JSON-able.
    """

    id: str
    environment: str
    split: Split
    view: TaskView
    features: Mapping[str, str] = field(default_factory=dict)
    payload: Mapping[str, Any] = field(default_factory=dict)


class SplitError(ValueError):
    """Shares or ids that no split can be made of."""


class SealedSplitError(RuntimeError):
    """A sealed split was asked for without its key."""


class SealKey:
    """The right to read the sealed splits of the `TaskSplits` that handed it out."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SealedRead:
    """One read of a sealed split. reader: who. about: what was measured, as JSON values. tasks:
    sha256 of the ids read, so that two reads can be told to be of the same tasks."""

    split: Split
    n: int
    reader: str
    about: Mapping[str, Any]
    tasks: str


class TaskSplits:
    """The splits of one environment, read through one door.

    source: split -> its tasks, in a fixed order. on_read: told of every read of a sealed split,
    before the tasks are given out.
    """

    def __init__(
        self, source: Callable[[Split], Sequence[Task]], on_read: Callable[[SealedRead], None]
    ) -> None:
        self._source, self._on_read = source, on_read
        self._key: SealKey | None = None

    def key(self) -> SealKey:
        """The key, once: for whoever measures. Raises SealedSplitError when it is given already."""
        if self._key is not None:
            raise SealedSplitError(
                "the key of the sealed splits was handed out already; it belongs to the evaluator "
                "of the run alone"
            )
        self._key = SealKey()
        return self._key

    def tasks(self, split: Split) -> tuple[Task, ...]:
        """A split that may be learned from. Raises SealedSplitError for any other."""
        if split in SEALED:
            raise SealedSplitError(
                f"split {split!r} is sealed: it is measured, never learned from; only the holder of "
                "the key reads it (`sealed`). Evolution and training take split 'evolve'"
            )
        return tuple(self._source(split))

    def size(self, split: Split) -> int:
        """How many tasks a split has, which is no secret."""
        return len(self._source(split))

    def sealed(
        self, split: Split, n: int, key: SealKey, reader: str, about: Mapping[str, Any]
    ) -> tuple[Task, ...]:
        """The first `n` tasks of a sealed split. Raises SealedSplitError for another key, and
        SplitError when the split has fewer."""
        if self._key is None or key is not self._key:
            raise SealedSplitError(
                f"{reader} asked for split {split!r} with a key that is not this environment's; "
                "the evaluator of the run holds it"
            )
        tasks = tuple(self._source(split))
        if n > len(tasks):
            raise SplitError(
                f"{reader} asks for {n} tasks of split {split!r}, which has {len(tasks)}; ask for "
                "fewer, or give the split more"
            )
        chosen = tasks[:n]
        ids = hashlib.sha256("\n".join(task.id for task in chosen).encode()).hexdigest()
        self._on_read(SealedRead(split, n, reader, dict(about), ids))
        return chosen


def assign_split(
    task_id: str, shares: Mapping[Split, float] = SHARES, seed: int = 0, group: str | None = None
) -> Split:
    """The split of a task, by a seeded hash of its stable id: for environments without given ones.

    It depends on the arguments alone, so that neither order nor further tasks move anything.
    group: what tasks that share it should share a fate in (a domain, a repository, a template):
    whole groups go to `ood`, by the group's hash, and the ids of the others are divided among the
    other splits. Without it `ood` is a random share like the rest. Raises SplitError for shares
    that are no division.
    """
    unknown = sorted(set(shares) - set(SPLITS))
    if unknown or min(shares.values(), default=0) < 0 or not math.isclose(sum(shares.values()), 1):
        raise SplitError(
            f"shares are {dict(shares)}; expected shares of 0 or more that sum to 1, of "
            f"{', '.join(SPLITS)}"
        )
    # Fixed order, so that the mapping's own does not count.
    order: tuple[Split, ...] = ("ood", "heldout", "valid_seen", "evolve")
    ladder = [(name, shares.get(name, 0.0)) for name in order]
    if group is not None:
        ood = shares.get("ood", 0.0)
        if _uniform(seed, "group", group) < ood:
            return "ood"
        ladder = [(name, share / (1.0 - ood)) for name, share in ladder[1:]]
    at = _uniform(seed, "task", task_id)
    for name, share in ladder:
        if at < share:
            return name
        at -= share
    # Rounding may leave a sliver above the last share.
    return next(name for name, share in reversed(ladder) if share > 0)


def split_ids(
    ids: Iterable[str],
    shares: Mapping[Split, float] = SHARES,
    seed: int = 0,
    groups: Mapping[str, str] | None = None,
) -> dict[Split, tuple[str, ...]]:
    """The ids of each split with a share, sorted; see `assign_split`. groups: id -> group.

    Raises SplitError when an id stands there twice or has no group where groups are given.
    """
    out: dict[Split, list[str]] = {name: [] for name in SPLITS if name in shares}
    before = None
    for task_id in sorted(ids):
        if task_id == before:
            raise SplitError(f"task id {task_id!r} stands there twice; ids must be unique")
        before = task_id
        if groups is not None and task_id not in groups:
            raise SplitError(f"task {task_id!r} has no group; give one of every task, or none")
        group = groups[task_id] if groups is not None else None
        out[assign_split(task_id, shares, seed, group)].append(task_id)
    return {name: tuple(found) for name, found in out.items()}


def _uniform(seed: int, kind: str, name: str) -> float:
    """A number in [0, 1) from the hash of the name, the same on every machine."""
    digest = hashlib.sha256(f"{seed}\x1f{kind}\x1f{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
