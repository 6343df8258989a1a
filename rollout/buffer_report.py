"""What a replay buffer holds, part by part, read beside its writer; a damaged part is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import ArrowException

from rollout.buffer_files import MANIFEST, TOKENS, CorruptPartError, Part, ReplayError
from rollout.mismatch import Mismatch


@dataclass(frozen=True, slots=True)
class HarnessSummary:
    """Episodes of one harness: how many, how many of them succeeded, mean reward."""

    trajectories: int
    successes: int
    reward: float


@dataclass(frozen=True, slots=True)
class PartSummary:
    """One part of a round. roles, outcomes, versions: trajectories by role, outcome class, policy
    version. infra_errors: episodes that were left out. bytes: on disk now. mismatch: None before
    the trainer's behaviour pass. tokens_kept: False once retention deleted the token data."""

    round: int
    part: str
    trajectories: int
    segments: int
    tokens: int
    bytes: int
    infra_errors: int
    tokens_kept: bool
    roles: Mapping[str, int]
    outcomes: Mapping[str, int]
    versions: Mapping[int, int]
    harnesses: Mapping[str, HarnessSummary]
    mismatch: Mismatch | None


@dataclass(frozen=True, slots=True)
class Survey:
    """All parts that could be read, by round and order of writing; problems: those that could not."""

    parts: tuple[PartSummary, ...]
    problems: tuple[str, ...]

    @property
    def rounds(self) -> list[int]:
        return sorted({part.round for part in self.parts})

    def staleness(self, policy_version: int) -> dict[int, int]:
        """Trajectories by (policy version now − theirs)."""
        counts: Counter[int] = Counter()
        for part in self.parts:
            for version, n in part.versions.items():
                counts[policy_version - version] += n
        return dict(sorted(counts.items()))

    def by_harness(self) -> dict[str, HarnessSummary]:
        """Over all parts, in the order in which the harnesses first appear."""
        return merge(item for part in self.parts for item in part.harnesses.items())


def survey(root: str | Path, verify: bool = False) -> Survey:
    """Of the buffer in the run directory `root`.

    verify: read and check the token data too; otherwise only its size is compared.
    """
    found: list[tuple[int, int, PartSummary]] = []
    problems: list[str] = []
    for marker in sorted(Path(root).glob(f"rounds/*/*/{MANIFEST}")):
        if marker.parent.name.startswith("."):
            continue  # being written
        try:
            part = Part(marker.parent)
            _check(part, verify)
            found.append((part.round, part.sequence, _summary(part)))
        except ReplayError as error:
            problems.append(str(error))
        except (ArrowException, KeyError, TypeError, ValueError) as error:
            problems.append(
                f"{marker.parent} cannot be read: {error!r}; restore or remove its round"
            )
    found.sort(key=lambda item: item[:2])
    return Survey(tuple(part for _, _, part in found), tuple(problems))


def merge(items: Iterable[tuple[str, HarnessSummary]]) -> dict[str, HarnessSummary]:
    """Summaries of the same harness added up."""
    out: dict[str, HarnessSummary] = {}
    for harness, more in items:
        have = out.get(harness, HarnessSummary(0, 0, 0.0))
        n = have.trajectories + more.trajectories
        reward = have.reward * have.trajectories + more.reward * more.trajectories
        out[harness] = HarnessSummary(n, have.successes + more.successes, reward / n)
    return out


def _check(part: Part, verify: bool) -> None:
    if not part.has_tokens:
        return
    if verify:
        part.tokens()
        part.trainer_logprobs()
        return
    path = part.directory / TOKENS
    expected = part.manifest["files"][TOKENS]["bytes"]
    found = path.stat().st_size if path.exists() else 0
    if found != expected and part.has_tokens:  # retention may have come in between
        raise CorruptPartError(
            f"{path} has {found} bytes, expected {expected}; restore it or remove its round"
        )


def _summary(part: Part) -> PartSummary:
    harness, success, reward = (part.column(n) for n in ("harness_id", "success", "reward"))
    harnesses = {
        name: HarnessSummary(
            int((harness == name).sum()),
            int(success[harness == name].sum()),
            float(reward[harness == name].mean()),
        )
        for name in dict.fromkeys(harness.tolist())
    }
    return PartSummary(
        round=part.round,
        part=part.name,
        trajectories=part.count,
        segments=part.manifest["segments"],
        tokens=part.manifest["tokens"],
        bytes=part.bytes,
        infra_errors=part.manifest["infra_errors_left_out"],
        tokens_kept=part.has_tokens,
        roles=_counts(part.column("role")),
        outcomes=_counts(part.column("outcome")),
        versions=_counts(part.column("policy_version")),
        harnesses=harnesses,
        mismatch=part.mismatch(),
    )


def _counts(values: np.ndarray) -> dict[Any, int]:
    return dict(sorted(Counter(values.tolist()).items()))
