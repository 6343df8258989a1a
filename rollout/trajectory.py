"""The records of one rollout: segments of tokens, an outcome, the trajectory around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Role = Literal["incumbent", "candidate", "heldout"]

OutcomeKind = Literal[
    "completed", "truncated", "agent_error", "harness_error", "infra_error", "contract_violation"
]
"""completed: the loop ended by itself (success is in the reward). truncated: a budget or context
limit ended it. agent_error: the model's doing (e.g. unparsable throughout). harness_error: bundle
code raised, hung or broke its limits. infra_error: engine, environment or worker failed; neither
a success nor a failure anywhere. contract_violation: a processor changed what its hook may not."""

SCORED: frozenset[str] = frozenset(
    {"completed", "truncated", "agent_error", "harness_error", "contract_violation"}
)
"""Outcomes that count as attempts in success rates. infra_error never does."""

TRAINABLE: frozenset[str] = frozenset({"completed", "truncated", "agent_error"})
"""Outcomes whose tokens may carry loss; the others leave their group before its mean."""


class SegmentError(ValueError):
    """A segment that would train wrongly: shapes differ, or a trainable token lacks a finite log-prob."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens that the model read and wrote in one context (training.md, Tokens).

    token_ids: int32 [n]. loss_mask: bool [n], True only on sampled tokens. logprobs: float32 [n],
    the engine's processed behaviour log-probs on sampled tokens, 0 elsewhere. versions: int32 [n],
    policy version that sampled the token, -1 elsewhere. temperature: of the sampling.
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    temperature: float

    def __post_init__(self) -> None:
        n = len(self.token_ids)
        for name in ("loss_mask", "logprobs", "versions"):
            if len(getattr(self, name)) != n:
                raise SegmentError(
                    f"segment: {name} has {len(getattr(self, name))} entries for {n} tokens; "
                    "every token needs one"
                )
        bad = ~np.isfinite(self.logprobs) & self.loss_mask
        if bad.any():
            raise SegmentError(
                f"segment: trainable token {int(np.flatnonzero(bad)[0])} has log-prob "
                f"{self.logprobs[bad][0]}; a sampled token needs the finite one that the engine gave"
            )

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: OutcomeKind
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    model_calls: int = 0
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode. `group` is the task id: GRPO groups by it over all harness and policy versions."""

    id: str
    task_id: str
    round: int
    role: Role
    harness_id: str
    policy_version: int
    seed: int
    outcome: Outcome
    reward: float
    success: bool
    steps: int
    segments: tuple[Segment, ...]
    cost: Cost = field(default_factory=Cost)
    detail: Mapping[str, Any] = field(default_factory=dict)  # the verifier's, e.g. sub-goals
    features: Mapping[str, str] = field(default_factory=dict)
    sandbox: str = "in_process"  # isolation level in force while it ran
    trace_ref: str = ""  # path below the run directory, "" where no trace was kept

    @property
    def group(self) -> str:
        return self.task_id

    @property
    def scored(self) -> bool:
        return self.outcome.kind in SCORED
