"""Settings of a model made on first use; imports pydantic only."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ArchitectureConfig(BaseModel):
    """A tiny decoder of a known architecture, randomly initialised. head_dim ≥ 32: vLLM's CPU
    attention has no smaller one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: Literal["qwen3", "llama"] = "qwen3"
    hidden: int = Field(128, ge=32)
    layers: int = Field(3, ge=1)
    heads: int = Field(4, ge=1)
    kv_heads: int = Field(2, ge=1)
    head_dim: int = Field(32, ge=32)
    intermediate: int = Field(256, ge=32)
    max_positions: int = Field(2048, ge=64)
    vocab: int = Field(700, ge=300, description="Upper bound of the tokenizer's entries.")

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"architecture.heads is {self.heads}, not a multiple of kv_heads {self.kv_heads}"
            )
        return self


class VariationConfig(BaseModel):
    """Edits (as `harness.edit` writes them in JSON) made to a demonstrating harness with `probability`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    probability: float = Field(ge=0, le=1)
    edits: tuple[dict[str, Any], ...]


class WarmstartConfig(BaseModel):
    """Supervised start on an expert's demonstrations, rendered by varied harnesses.

    bundle: the harness that variations start from. prompt_weight: weight of the language-model loss on
    prompt tokens beside the answer's. The result is cached under a hash of all this, of the
    environment and of the harness code.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bundle: str
    architecture: ArchitectureConfig = ArchitectureConfig()
    episodes: int = Field(2000, ge=1)
    variations: tuple[VariationConfig, ...] = ()
    lr: float = Field(3e-3, gt=0)
    batch_size: int = Field(16, ge=1)
    epochs: float = Field(1.0, gt=0)
    prompt_weight: float = Field(0.5, ge=0)
    seed: int = Field(0, ge=0)
    threads: int = Field(2, ge=1)


class FinetuneConfig(BaseModel):
    """Supervised training of a model on what was sampled in successful episodes, tokens as they are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lr: float = Field(1e-5, gt=0)
    batch_size: int = Field(8, ge=1)
    epochs: float = Field(1.0, gt=0)
    seed: int = Field(0, ge=0)
    threads: int = Field(2, ge=1)
