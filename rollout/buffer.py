"""The replay buffer: rounds of trajectories, first in first out, durable on disk."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

import numpy as np

from rollout.buffer_files import (
    MANIFEST,
    TRAINER_MARKER,
    CorruptPartError,
    Part,
    ReplayError,
    to_trajectories,
    write_part,
)
from rollout.buffer_view import BufferView, view
from rollout.mismatch import Mismatch
from rollout.trajectory import Role, Trajectory

__all__ = [
    "BufferStats",
    "BufferView",
    "CorruptPartError",
    "Mismatch",
    "ReplayBuffer",
    "ReplayError",
]

TRAIN_ROLES: tuple[Role, ...] = ("incumbent", "candidate")
PART_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class BufferStats:
    """What the window holds. staleness: trajectories by (policy version now − theirs).

    harness_mix: trajectories by harness id. bytes: on disk.
    """

    rounds: int
    trajectories: int
    segments: int
    tokens: int
    bytes: int
    staleness: Mapping[int, int]
    harness_mix: Mapping[str, int]


class ReplayBuffer:
    """Rounds of trajectories under `root`/rounds.

    window_rounds: how many rounds the window spans, the current one included. max_trajectories:
    bound on the window's size; the oldest rounds leave it first, always whole, so that a task's
    group is never cut within a round. With s trajectories a round and C of capacity, the oldest in
    the window is ⌊C/s⌋ − 1 rounds old. Rounds that left the window stay on disk, they are the
    record of the run; `retain` deletes the token data of all but the newest `keep_rounds` (None:
    of none). lead: rounds by which a rollout may run ahead of the round that evolves and trains.

    Opening reads and checks every record but no token. Raises CorruptPartError. One writer a
    directory; within it several threads may use the buffer.
    """

    def __init__(
        self,
        root: str | Path,
        window_rounds: int,
        max_trajectories: int,
        keep_rounds: int | None = None,
        lead: int = 0,
    ) -> None:
        if keep_rounds is not None and keep_rounds < window_rounds:
            raise ReplayError(
                f"buffer: keep_rounds is {keep_rounds} and window_rounds {window_rounds}; the window "
                "needs its tokens, keep at least as many rounds"
            )
        if window_rounds < 1 or max_trajectories < 1:
            raise ReplayError(
                f"buffer: window_rounds is {window_rounds} and max_trajectories {max_trajectories}; "
                "both must be at least 1"
            )
        self.root = Path(root)
        self.window_rounds = window_rounds
        self.max_trajectories = max_trajectories
        self.keep_rounds = keep_rounds
        self.lead = lead
        self._lock = RLock()  # evolution appends while training reads
        self._parts: dict[int, dict[str, Part]] = {}
        for marker in sorted(self.root.glob(f"rounds/*/*/{MANIFEST}")):
            # Hidden directories are parts whose writer was killed before the rename.
            if not marker.parent.name.startswith("."):
                self._enter(Part(marker.parent))

    def append(self, round: int, part: str, trajectories: Sequence[Trajectory]) -> bool:
        """Add a part of a round, once: False, and nothing is written, where it is there already.

        infra_error trajectories are left out: they are neither success nor failure. Raises
        ReplayError for held-out trajectories, another round's, double ids, a round more than `lead`
        before the newest, and for a part that was written before with other trajectories.
        """
        kept = self._accept(round, part, trajectories)
        existing = self._parts.get(round, {}).get(part)
        if existing is not None:
            found = set(existing.column("id").tolist())
            if found != {t.id for t in kept}:
                raise ReplayError(
                    f"buffer: part {part!r} of round {round} was written before with "
                    f"{len(found)} other trajectories; a part is appended once"
                )
            return False
        newest = max(self.rounds(), default=round)
        if round < newest - self.lead:
            raise ReplayError(
                f"buffer: round {round} is appended after round {newest}; rounds come in order, at "
                f"most {self.lead} ahead"
            )
        ids = {t.id for t in kept}
        for other in self._ordered(round):
            double = ids & set(other.column("id").tolist())
            if double:
                raise ReplayError(
                    f"buffer: trajectory {min(double)!r} is in part {other.name!r} of round {round} "
                    f"and again in {part!r}"
                )
        directory = self._directory(round) / part
        directory.parent.parent.mkdir(parents=True, exist_ok=True)
        sequence = len(self._ordered(round))
        written = write_part(directory, round, sequence, kept, len(trajectories) - len(kept))
        self._enter(written)
        return True

    def parts(self, round: int) -> list[str]:
        """Names of a round's parts in the order in which they were appended."""
        return [part.name for part in self._ordered(round)]

    def manifest(self, round: int, part: str) -> Path:
        """The file that describes, with their checksums, those of a part."""
        return self._part(round, part).directory / MANIFEST

    def trainer_markers(self, round: int, current: Collection[str] | None = None) -> list[Path]:
        """Of the parts in the window of `round` with the trainer's log-probs, what describes those."""
        return [
            part.directory / TRAINER_MARKER
            for number in self.window(round, current)
            for part in self._read(number, round, current)
            if part.has_trainer_logprobs
        ]

    def trajectories(
        self, round: int, part: str | None = None, *, tokens: bool = False
    ) -> list[Trajectory]:
        """Records of a round (or one part); with empty segments unless `tokens` are asked for."""
        chosen = self._ordered(round) if part is None else [self._part(round, part)]
        return [
            trajectory
            for p in chosen
            for trajectory in to_trajectories(p.table, p.tokens() if tokens else None)
        ]

    def has_tokens(self, round: int) -> bool:
        """False where retention deleted token data of the round."""
        return all(part.has_tokens for part in self._ordered(round))

    def rounds(self) -> list[int]:
        """All rounds on disk, oldest first."""
        with self._lock:
            return sorted(self._parts)

    def window(self, round: int, current: Collection[str] | None = None) -> list[int]:
        """Rounds in the window of `round`, oldest first.

        current: names of the parts of `round` itself that count (None: all that are there).
        Raises ReplayError where the newest round alone exceeds max_trajectories.
        """
        chosen: list[int] = []
        total = 0
        for number in reversed(self.rounds()):
            if number > round:
                continue
            if number <= round - self.window_rounds:
                break
            size = sum(part.count for part in self._read(number, round, current))
            if total + size > self.max_trajectories:
                if not chosen:
                    raise ReplayError(
                        f"buffer: round {number} has {size} trajectories, more than "
                        f"max_trajectories {self.max_trajectories}; raise it, a round is never split"
                    )
                break
            chosen.append(number)
            total += size
        return chosen[::-1]

    def select(
        self,
        round: int,
        include_roles: Collection[Role] = TRAIN_ROLES,
        policy_version: int | None = None,
        current: Collection[str] | None = None,
    ) -> BufferView:
        """The window of `round` as flat arrays; reads the tokens.

        current: names of the parts of `round` itself that are read (None: all), so that training
        beside an evolution which still appends reads the same, however far that has come.
        policy_version: the current one; given, a trajectory with a sampled token more than
        window_rounds − 1 + lead versions behind it is left out and counted in the view's `stale`;
        one with a token ahead of it is refused by ReplayError.
        """
        parts = [
            part
            for number in self.window(round, current)
            for part in self._read(number, round, current)
        ]
        if policy_version is None:
            return view(parts, include_roles)
        oldest = policy_version - self.window_rounds + 1 - self.lead
        found = view(parts, include_roles, oldest)
        newest = int(found.versions.max(initial=-1))
        if newest > policy_version:
            raise ReplayError(
                f"buffer: a token was sampled by policy version {newest} and the policy is at "
                f"{policy_version}; the run directory holds another run's rounds, or its state was "
                "set back"
            )
        return found

    def part_view(self, round: int, part: str) -> BufferView:
        """One part alone, all roles: what the trainer's behaviour pass goes over."""
        return view([self._part(round, part)], None)

    def without_trainer_logprobs(
        self, round: int, current: Collection[str] | None = None
    ) -> list[tuple[int, str]]:
        """(round, part) of the window whose behaviour pass is still to be done. current: as above."""
        return [
            (part.round, part.name)
            for number in self.window(round, current)
            for part in self._read(number, round, current)
            if not part.has_trainer_logprobs
        ]

    def write_trainer_logprobs(
        self, round: int, part: str, values: np.ndarray, policy_version: int
    ) -> bool:
        """Keep the trainer's log-probs (float32 [n], token by token of `part_view`) with the part.

        Written once: False where they are there already. Raises ReplayError on another length.
        """
        return self._part(round, part).write_trainer_logprobs(values, policy_version)

    def mismatch(self, round: int, part: str) -> Mismatch | None:
        """Engine against trainer on a part, where its behaviour pass was done; else None."""
        return self._part(round, part).mismatch()

    def retain(self, round: int) -> list[int]:
        """Delete the token data of rounds before the newest `keep_rounds`, counted from `round`.

        Their records stay. The rounds of which something was deleted; repeated after a kill it goes
        on where that left off. A deleted round cannot be selected or exported any more.
        """
        if self.keep_rounds is None:
            return []
        old = [number for number in self.rounds() if number <= round - self.keep_rounds]
        return [
            number for number in old if sum(part.drop_tokens() for part in self._ordered(number))
        ]

    def stats(self, round: int, policy_version: int) -> BufferStats:
        """Of the window of `round`, from the records alone."""
        parts = [part for number in self.window(round) for part in self._ordered(number)]
        staleness: Counter[int] = Counter()
        mix: Counter[str] = Counter()
        for part in parts:
            staleness.update((policy_version - part.column("policy_version")).tolist())
            mix.update(part.column("harness_id").tolist())
        return BufferStats(
            rounds=len({part.round for part in parts}),
            trajectories=sum(part.count for part in parts),
            segments=sum(part.manifest["segments"] for part in parts),
            tokens=sum(part.manifest["tokens"] for part in parts),
            bytes=sum(part.bytes for part in parts),
            staleness=dict(sorted(staleness.items())),
            harness_mix=dict(sorted(mix.items())),
        )

    def _accept(
        self, round: int, part: str, trajectories: Sequence[Trajectory]
    ) -> list[Trajectory]:
        if not PART_NAME.fullmatch(part):
            raise ReplayError(
                f"buffer: part name {part!r}; expected small letters, digits, - and _"
            )
        counts = Counter(t.id for t in trajectories)
        for t in trajectories:
            if t.role == "heldout":
                raise ReplayError(
                    f"buffer: trajectory {t.id!r} is held out; it may be measured, never trained on"
                )
            if t.round != round:
                raise ReplayError(
                    f"buffer: trajectory {t.id!r} is of round {t.round}, appended to round {round}"
                )
            if counts[t.id] > 1:
                raise ReplayError(f"buffer: trajectory {t.id!r} is in part {part!r} twice")
        return [t for t in trajectories if t.outcome.kind != "infra_error"]

    def _enter(self, part: Part) -> None:
        with self._lock:
            self._parts.setdefault(part.round, {})[part.name] = part

    def _ordered(self, round: int) -> list[Part]:
        with self._lock:
            parts = list(self._parts.get(round, {}).values())
        return sorted(parts, key=lambda part: part.sequence)

    def _read(self, number: int, round: int, current: Collection[str] | None) -> list[Part]:
        """Parts of round `number` that the window of `round` reads."""
        return [
            part
            for part in self._ordered(number)
            if number < round or current is None or part.name in current
        ]

    def _part(self, round: int, part: str) -> Part:
        try:
            return self._parts[round][part]
        except KeyError as error:
            raise ReplayError(
                f"buffer: round {round} has no part {part!r}; it has {self.parts(round)}"
            ) from error

    def _directory(self, round: int) -> Path:
        return self.root / "rounds" / f"{round:04d}"
