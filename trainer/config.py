"""Settings of the trainer; imports pydantic only, so that a config is read without torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

AdvantageName = Literal["pooled", "within_harness", "shrinkage", "leave_one_out", "centred"]
Aggregation = Literal["token", "trajectory", "constant"]
RatioKind = Literal["token", "sequence", "decoupled"]
Packing = Literal["auto", "packed", "padded"]
OffloadDevice = Literal["none", "cpu"]


class LoRAConfig(BaseModel):
    """Low-rank adapters on linear layers (Hu et al. 2022). The base weights stay as they were:
    they are the reference model of kl_beta, and no checkpoint holds them. No dropout: the ratio of
    policy and behaviour would differ from 1 on policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(16, ge=1, description="Rank of each update.")
    alpha: float = Field(32.0, gt=0, description="The update is scaled by alpha / rank.")
    targets: Literal["all-linear"] | tuple[str, ...] = Field(
        "all-linear",
        description="Layers that get an adapter: all linear ones but the head, or the ends of module "
        "names, for example [q_proj, v_proj].",
    )
    publish: Literal["merged", "adapter"] = Field(
        "merged",
        description="merged: whole weights with the update added, for any engine. adapter: a peft "
        "adapter directory, for an engine that serves LoRA.",
    )


class OffloadConfig(BaseModel):
    """What ZeRO keeps in the memory of the host instead of the device's. On device cpu both are the
    same memory: it runs there, and saves nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: OffloadDevice = Field(
        "none",
        description="cpu: fp32 weights and AdamW moments, stepped there by torch's fused AdamW "
        "(zero_stage 1, 2 or 3).",
    )
    params: OffloadDevice = Field("none", description="cpu: sharded weights (zero_stage 3).")


class TrainerConfig(BaseModel):
    """Cross-harness GRPO on DeepSpeed. The defaults are the objective's, not a model's: set `lr`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Optimiser
    lr: float = Field(1e-6, gt=0, description="AdamW learning rate after warm-up.")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW moment decays.")
    adam_eps: float = Field(1e-8, gt=0, description="AdamW denominator floor.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled decay; never on 1-D tensors.")
    grad_clip: float = Field(1.0, ge=0, description="Global gradient norm limit; 0 turns it off.")
    warmup_steps: int = Field(
        0, ge=0, description="Optimiser steps of linear warm-up, then constant."
    )

    # One round
    steps_per_round: int = Field(5, ge=1, description="Optimiser steps a round.")
    minibatches: int = Field(
        1,
        ge=1,
        description="Parts the buffer is split into, by whole task groups, even in trajectories; "
        "step i takes part i mod minibatches, shuffled anew every epoch. 1: each step takes all of it.",
    )

    # Advantage and objective
    advantage: AdvantageName = Field("pooled", description="Baseline and scale of the rewards.")
    ratio: RatioKind = Field(
        "token",
        description="token: π_θ/π_b a token. sequence: length-normalised over the trajectory (one "
        "more forward pass a step). decoupled: π_θ/π_old, weighted by the truncated π_old/π_b.",
    )
    eps_low: float = Field(0.2, ge=0, lt=1, description="Lower clip: ratio ≥ 1 − eps_low.")
    eps_high: float = Field(0.28, ge=0, description="Upper clip: ratio ≤ 1 + eps_high.")
    dual_clip: float | None = Field(
        3.0, gt=1, description="Bound on the ratio where the advantage is negative; null: off."
    )
    ratio_mask: tuple[float, float] | None = Field(
        (0.5, 2.0),
        description="Tokens whose ratio to the behaviour policy lies outside carry no loss; null: off.",
    )
    log_ratio_clamp: float = Field(20.0, gt=0, description="Bound on |log ratio| before exp.")
    importance_cap: float = Field(2.0, gt=0, description="Truncation of π_old/π_b (decoupled).")
    aggregation: Aggregation = Field(
        "token",
        description="token: mean over sampled tokens of the step. trajectory: mean of trajectory "
        "means. constant: sum over tokens / (trajectories · constant_length), Dr. GRPO.",
    )
    constant_length: int | None = Field(None, ge=1, description="Tokens a trajectory (constant).")
    kl_beta: float = Field(0.0, ge=0, description="Coefficient of KL k3 to the reference model.")
    reference_path: str | None = Field(
        None, description="Reference model M_0 for kl_beta > 0; null: the model trained from."
    )

    # Engine
    device: Literal["cpu", "cuda"] = Field("cpu", description="Where ranks run.")
    dtype: Literal["fp32", "bf16"] = Field("fp32", description="bf16 keeps an fp32 master copy.")
    zero_stage: Literal[0, 1, 2, 3] = Field(0, description="DeepSpeed ZeRO stage.")
    world_size: int = Field(1, ge=1, description="Ranks: one Ray actor each.")
    threads_per_rank: int = Field(1, ge=1, description="OMP_NUM_THREADS of a rank.")
    micro_batch_tokens: int = Field(
        4096,
        ge=1,
        description="Tokens of one forward pass, padding included. A longer segment is alone.",
    )
    packing: Packing = Field(
        "auto",
        description="packed: segments one after another in a row with reset positions; needs a "
        "variable-length attention kernel to be fast. padded: rows of similar length. auto: packed "
        "where the kernel has it and the parity check passes, else padded.",
    )
    attn_implementation: str = Field("sdpa", description="As transformers names it.")
    lora: LoRAConfig | None = Field(None, description="Train low-rank adapters; null: all weights.")
    offload: OffloadConfig = Field(OffloadConfig(), description="Use of the host's memory.")
    gradient_checkpointing: bool = Field(False, description="Recompute activations in backward.")
    seed: int = Field(0, description="Of shuffles and of torch.")
    publish: Literal["filesystem", "collective"] = Field(
        "filesystem",
        description="How weights reach the engines. filesystem: a safetensors file that they read. "
        "collective: rank 0 broadcasts them in buckets to the engines' own processes, with NCCL on "
        "GPUs (not measured there yet) and gloo on CPUs; the file is written too, for resuming.",
    )
    publish_bucket_bytes: int = Field(
        256 << 20, ge=1, description="Bytes of one broadcast; a larger tensor is alone."
    )
    publish_timeout_s: float = Field(
        600.0,
        gt=0,
        description="Longest wait for the engines to join a collective publication; after twice that "
        "the run is ended.",
    )
    rank_timeout_s: float = Field(
        3600.0, gt=0, description="Longest a call to the ranks may take before the run is ended."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.aggregation == "constant" and self.constant_length is None:
            raise ValueError(
                "trainer.aggregation is 'constant' but constant_length is not set; set it to the "
                "sampled-token budget of an episode"
            )
        if self.ratio_mask is not None and not 0 < self.ratio_mask[0] < 1 < self.ratio_mask[1]:
            raise ValueError(
                f"trainer.ratio_mask is {self.ratio_mask}; expected low < 1 < high, e.g. (0.5, 2.0), "
                "or null to turn it off"
            )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.eps_high:
            raise ValueError(
                f"trainer.dual_clip is {self.dual_clip}, not above 1 + eps_high = "
                f"{1 + self.eps_high}; raise it or set it to null"
            )
        if self.minibatches > self.steps_per_round:
            raise ValueError(
                f"trainer.minibatches is {self.minibatches} but steps_per_round is "
                f"{self.steps_per_round}: part of the buffer would never be trained on; use at most "
                "as many mini-batches as steps"
            )
        if self.dtype == "bf16" and self.zero_stage == 0:
            raise ValueError(
                "trainer.dtype is 'bf16' with zero_stage 0, where DeepSpeed cannot accumulate "
                "gradients in fp32; use zero_stage 1 (the same result on one rank) or dtype fp32"
            )
        if self.lora is not None and self.reference_path is not None:
            raise ValueError(
                "trainer.lora and trainer.reference_path are both set, but with LoRA the reference "
                "model is the base without its adapter; unset reference_path"
            )
        if self.offload.optimizer == "cpu" and self.zero_stage == 0:
            raise ValueError(
                "trainer.offload.optimizer is 'cpu' with zero_stage 0, where DeepSpeed keeps no "
                "optimiser state of its own; use zero_stage 1, 2 or 3"
            )
        if self.offload.params == "cpu" and self.zero_stage != 3:
            raise ValueError(
                f"trainer.offload.params is 'cpu' with zero_stage {self.zero_stage}: only zero_stage 3 "
                "shards the weights; use it, or offload.params none"
            )
        if (
            self.publish == "collective"
            and self.lora is not None
            and self.lora.publish == "adapter"
        ):
            raise ValueError(
                "trainer.publish is 'collective' with trainer.lora.publish 'adapter': engines read "
                "adapters from files; use publish filesystem or lora.publish merged"
            )
        return self
