"""Tasks and their splits: what is to be done, and who may see which part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.events import TaskView

Split = Literal["evolve", "valid_seen", "heldout", "ood"]
SPLITS: tuple[Split, ...] = ("evolve", "valid_seen", "heldout", "ood")


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
