"""What `coevo eval` writes: one pair's episodes with all that they depend on."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from coevo.records import EpisodeResult, Record, SplitResult, Tokens, VersionedRecord


class HarnessSource(Record):
    """source: the run or directory as it was given; round: None for a directory."""

    id: str
    source: str
    round: int | None = None


class PolicySource(Record):
    """fingerprint: of the weights, "" for a hosted model. version: in its run, 0 for a model of its
    own. model: the directory (or hosted name) that it is, or is trained from."""

    fingerprint: str
    source: str
    model: str
    version: int = 0
    round: int | None = None


class EvalRecord(VersionedRecord):
    """One pair on one split. environment, rollout: settings as they stood. reads: of sealed splits."""

    kind: ClassVar[str] = "evaluation result"
    harness: HarnessSource
    policy: PolicySource
    environment: dict[str, Any]
    rollout: dict[str, Any]
    split: str
    n: int
    repeats: int
    seed: int
    result: SplitResult
    reward: float | None
    tokens: Tokens
    outcomes: dict[str, int]
    episodes: tuple[EpisodeResult, ...]
    reads: tuple[dict[str, Any], ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)
