"""The `policy:` section of a configuration: where the task model comes from and the engine that serves it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollout.policy.config import APIConfig, ServedLoRAConfig, VLLMEngineConfig
from trainer.warmstart_config import WarmstartConfig


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineConfig(_Section):
    """Of the policy engine; `rollout.policy.config.VLLMEngineConfig` documents the fields.

    max_model_len, when unset, follows rollout.max_context + rollout.max_new_tokens. replicas: engines
    that serve the same policy; a trajectory stays on one of them.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    kv_cache_bytes: int = Field(256 << 20, ge=1 << 20)
    max_num_seqs: int = Field(128, ge=1)
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    enforce_eager: bool = True
    prefix_caching: bool = True
    batching: Literal["serial", "continuous"] = "serial"
    tensor_parallel: int = Field(1, ge=1)
    replicas: int = Field(1, ge=1)
    lora: ServedLoRAConfig | None = None
    threads: int = Field(1, ge=1)
    start_timeout_s: float = Field(600.0, gt=0)
    call_timeout_s: float = Field(600.0, gt=0)

    def resolved(self, model: str, max_model_len: int, seed: int) -> VLLMEngineConfig:
        return VLLMEngineConfig(
            model=model,
            max_model_len=max_model_len,
            seed=seed,
            **self.model_dump(exclude={"replicas"}),
        )


class PolicyConfig(_Section):
    """The task model M_0: a Hugging Face directory (`model`), one made on first use (`warmstart`), or
    a hosted one (`api`), which cannot be trained."""

    model: str | None = None
    warmstart: WarmstartConfig | None = None
    api: APIConfig | None = None
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        names = ("model", "warmstart", "api")
        found = [f"policy.{name}" for name in names if getattr(self, name) is not None]
        if len(found) != 1:
            raise ValueError(
                "set exactly one of policy.model (a model directory), policy.warmstart (make a "
                f"small one) and policy.api (a hosted one); found {' and '.join(found) or 'none'}"
            )
        return self
