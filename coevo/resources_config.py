"""The `resources:` and `storage:` sections of a configuration: what a run may use and what it keeps."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from coevo.policy_config import PolicyConfig
from trainer.config import TrainerConfig


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StorageConfig(_Section):
    """What of a run's policies stays on disk, newest first.

    trainer_checkpoints: trainer states; the second is gone back to where the newest is damaged.
    policy_weights: published weights (null: of all rounds, so that they can be measured later).
    """

    trainer_checkpoints: int = Field(2, ge=2)
    policy_weights: int | None = Field(None, ge=2)

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.policy_weights is not None and self.policy_weights < self.trainer_checkpoints:
            raise ValueError(
                f"storage.policy_weights is {self.policy_weights} but storage.trainer_checkpoints "
                f"{self.trainer_checkpoints}: a trainer state is of no use without its weights; keep "
                "at least as many, or null for all"
            )
        return self


class ResourcesConfig(_Section):
    """What Ray may use on this machine: cores (null: all), object store bytes.

    placement: `disaggregated` gives engines and trainer their own GPUs; `colocated` gives them the
    same: evolution and training take turns, and the engines sleep while the trainer lives.
    gpu_memory_gib, host_memory_gib: of a GPU and of a node, where they cannot be read off this
    machine (null), for instance because the job runs on another one."""

    placement: Literal["disaggregated", "colocated"] = "disaggregated"
    gpu_memory_gib: float | None = Field(None, gt=0)
    host_memory_gib: float | None = Field(None, gt=0)
    num_cpus: int | None = Field(None, ge=1)
    object_store_bytes: int = Field(256 << 20, ge=78 << 20)


def cannot_share(policy: PolicyConfig, trainer: TrainerConfig) -> str:
    """Why engines and trainer cannot take turns on the same GPUs (placement `colocated`); "" where
    they can."""
    engine = policy.engine
    if policy.api is not None:
        return "resources.placement is 'colocated' but policy.api has no engine here; leave it out"
    if trainer.publish == "collective":
        return (
            "resources.placement is 'colocated' but trainer.publish is 'collective': NCCL takes one "
            "process a GPU, and the engines sleep meanwhile; use trainer.publish: filesystem"
        )
    workers = engine.replicas * engine.tensor_parallel
    if engine.device == "cuda" and workers != trainer.world_size:
        return (
            f"resources.placement is 'colocated' with policy.engine.replicas {engine.replicas} x "
            f"tensor_parallel {engine.tensor_parallel} and trainer.world_size {trainer.world_size}: "
            "each GPU holds one engine worker and one rank; make them equal"
        )
    return ""
