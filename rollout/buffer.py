"""The replay buffer: rounds of trajectories, first in first out, durable on disk."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollout.buffer_files import (
    MANIFEST,
    TOKEN_DTYPES,
    CorruptPartError,
    Part,
    ReplayError,
    to_trajectories,
    write_part,
)
from rollout.trajectory import Role, Trajectory

__all__ = ["BufferStats", "BufferView", "CorruptPartError", "ReplayBuffer", "ReplayError"]

TRAIN_ROLES: tuple[Role, ...] = ("incumbent", "candidate")
PART_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class BufferView:
    """n tokens in s segments of t trajectories, oldest round first; arrays may be read-only.

    token_ids int32 [n] · loss_mask bool [n] · logprobs float32 [n] (behaviour, of the engine) ·
    versions int32 [n] (−1 where not sampled) · trainer_logprobs float32 [n] or None where a part
    has none yet · offsets int64 [s+1] · trajectory int64 [s] · temperatures float64 [s] · ids,
    groups, harnesses, outcomes, roles: str [t] · rewards float64 [t] · success bool [t] ·
    policy_versions, rounds int32 [t].
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    trainer_logprobs: np.ndarray | None
    offsets: np.ndarray
    trajectory: np.ndarray
    temperatures: np.ndarray
    ids: np.ndarray
    groups: np.ndarray
    harnesses: np.ndarray
    outcomes: np.ndarray
    roles: np.ndarray
    rewards: np.ndarray
    success: np.ndarray
    policy_versions: np.ndarray
    rounds: np.ndarray

    @property
    def trajectories(self) -> int:
        return len(self.ids)

    @property
    def segments(self) -> int:
        return len(self.trajectory)


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
    the window is ⌊C/s⌋ − 1 rounds old. Rounds that left the window stay on disk.

    Opening reads and checks every record but no token. Raises CorruptPartError.
    """

    def __init__(self, root: str | Path, window_rounds: int, max_trajectories: int) -> None:
        if window_rounds < 1 or max_trajectories < 1:
            raise ReplayError(
                f"buffer: window_rounds is {window_rounds} and max_trajectories {max_trajectories}; "
                "both must be at least 1"
            )
        self.root = Path(root)
        self.window_rounds = window_rounds
        self.max_trajectories = max_trajectories
        self._parts: dict[int, dict[str, Part]] = {}
        for marker in sorted(self.root.glob(f"rounds/*/*/{MANIFEST}")):
            # Hidden directories are parts whose writer was killed before the rename.
            if not marker.parent.name.startswith("."):
                self._enter(Part(marker.parent))

    def append(self, round: int, part: str, trajectories: Sequence[Trajectory]) -> bool:
        """Add a part of a round, once: False, and nothing is written, where it is there already.

        infra_error trajectories are left out: they are neither success nor failure. Raises
        ReplayError for held-out trajectories, another round's, double ids, a round before the
        newest, and for a part that was written before with other trajectories.
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
        newest = max(self._parts, default=round)
        if round < newest:
            raise ReplayError(
                f"buffer: round {round} is appended after round {newest}; rounds come in order"
            )
        ids = {t.id for t in kept}
        for other in self._parts.get(round, {}).values():
            double = ids & set(other.column("id").tolist())
            if double:
                raise ReplayError(
                    f"buffer: trajectory {min(double)!r} is in part {other.name!r} of round {round} "
                    f"and again in {part!r}"
                )
        directory = self._directory(round) / part
        directory.parent.mkdir(parents=True, exist_ok=True)
        sequence = len(self._parts.get(round, {}))
        written = write_part(directory, round, sequence, kept, len(trajectories) - len(kept))
        self._enter(written)
        return True

    def parts(self, round: int) -> list[str]:
        """Names of a round's parts in the order in which they were appended."""
        return [part.name for part in self._ordered(round)]

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

    def window(self, round: int) -> list[int]:
        """Rounds in the window of `round`, oldest first.

        Raises ReplayError where the newest round alone exceeds max_trajectories.
        """
        chosen: list[int] = []
        total = 0
        for number in sorted(self._parts, reverse=True):
            if number > round:
                continue
            if number <= round - self.window_rounds:
                break
            size = sum(part.count for part in self._parts[number].values())
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
        policy_version: the current one; given, each sampled token's version is checked to be at
        most window_rounds − 1 behind it and none ahead. Raises ReplayError.
        """
        parts = [
            part
            for number in self.window(round)
            for part in self._ordered(number)
            if number < round or current is None or part.name in current
        ]
        view = _view(parts, include_roles)
        for part in parts:
            part.forget_tokens()
        if policy_version is not None:
            self._check_staleness(view, policy_version)
        return view

    def part_view(self, round: int, part: str) -> BufferView:
        """One part alone, all roles: what the trainer's behaviour pass goes over."""
        found = self._part(round, part)
        view = _view([found], None)
        found.forget_tokens()
        return view

    def without_trainer_logprobs(self, round: int) -> list[tuple[int, str]]:
        """(round, part) of the window whose behaviour pass is still to be done."""
        return [
            (part.round, part.name)
            for number in self.window(round)
            for part in self._ordered(number)
            if not part.has_trainer_logprobs
        ]

    def write_trainer_logprobs(
        self, round: int, part: str, values: np.ndarray, policy_version: int
    ) -> bool:
        """Keep the trainer's log-probs (float32 [n], token by token of `part_view`) with the part.

        Written once: False where they are there already. Raises ReplayError on another length.
        """
        return self._part(round, part).write_trainer_logprobs(values, policy_version)

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

    def _check_staleness(self, view: BufferView, policy_version: int) -> None:
        if not view.loss_mask.any():
            return
        sampled = view.versions[view.loss_mask]
        oldest, newest = int(sampled.min()), int(sampled.max())
        if newest > policy_version or oldest < policy_version - self.window_rounds + 1:
            raise ReplayError(
                f"buffer: tokens were sampled by policy versions {oldest}…{newest}, the policy is at "
                f"{policy_version} and the window spans {self.window_rounds} rounds; expected "
                f"{policy_version - self.window_rounds + 1}…{policy_version}"
            )

    def _enter(self, part: Part) -> None:
        self._parts.setdefault(part.round, {})[part.name] = part

    def _ordered(self, round: int) -> list[Part]:
        return sorted(self._parts.get(round, {}).values(), key=lambda part: part.sequence)

    def _part(self, round: int, part: str) -> Part:
        try:
            return self._parts[round][part]
        except KeyError as error:
            raise ReplayError(
                f"buffer: round {round} has no part {part!r}; it has {self.parts(round)}"
            ) from error

    def _directory(self, round: int) -> Path:
        return self.root / "rounds" / f"{round:04d}"


def _view(parts: Sequence[Part], include_roles: Collection[Role] | None) -> BufferView:
    """Flat arrays over the parts' trajectories of the given roles (None: all)."""
    tokens: dict[str, list[np.ndarray]] = {name: [] for name in TOKEN_DTYPES}
    rows: dict[str, list[np.ndarray]] = {name: [] for name in _ROW_COLUMNS}
    trainer: list[np.ndarray] | None = []
    lengths: list[np.ndarray] = []
    count = 0
    for part in parts:
        roles = part.column("role")
        chosen = (
            np.ones(part.count, dtype=bool)
            if include_roles is None
            else np.isin(roles.astype(str), list(include_roles))
        )
        if not chosen.any():
            continue
        arrays = part.tokens()
        segment = chosen[arrays.trajectory]
        size = np.diff(arrays.offsets)
        token = np.repeat(segment, size)
        every = bool(chosen.all())  # the common case copies nothing here
        for name in ("token_ids", "loss_mask", "logprobs", "versions"):
            values = getattr(arrays, name)
            tokens[name].append(values if every else values[token])
        number = np.cumsum(chosen) - 1 + count
        tokens["trajectory"].append(number[arrays.trajectory][segment])
        tokens["temperatures"].append(arrays.temperatures[segment])
        lengths.append(size[segment])
        for name in _ROW_COLUMNS:
            rows[name].append(part.column(name)[chosen])
        count += int(chosen.sum())
        if trainer is not None:
            own = part.trainer_logprobs()
            trainer = None if own is None else [*trainer, own if every else own[token]]

    def joined(values: list[np.ndarray], dtype: type) -> np.ndarray:
        return np.concatenate(values) if values else np.zeros(0, dtype=dtype)

    row = {name: joined(rows[name], dtype) for name, dtype in _ROW_COLUMNS.items()}
    sizes = joined(lengths, np.int64)
    return BufferView(
        token_ids=joined(tokens["token_ids"], np.int32),
        loss_mask=joined(tokens["loss_mask"], np.bool_),
        logprobs=joined(tokens["logprobs"], np.float32),
        versions=joined(tokens["versions"], np.int32),
        trainer_logprobs=None if trainer is None else joined(trainer, np.float32),
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        trajectory=joined(tokens["trajectory"], np.int64).astype(np.int64),
        temperatures=joined(tokens["temperatures"], np.float64),
        ids=row["id"],
        groups=row["task_id"],
        harnesses=row["harness_id"],
        outcomes=row["outcome"],
        roles=row["role"],
        rewards=row["reward"],
        success=row["success"],
        policy_versions=row["policy_version"],
        rounds=row["round"],
    )


_ROW_COLUMNS: Mapping[str, type] = {
    "id": np.object_,
    "task_id": np.object_,
    "harness_id": np.object_,
    "outcome": np.object_,
    "role": np.object_,
    "reward": np.float64,
    "success": np.bool_,
    "policy_version": np.int32,
    "round": np.int32,
}
