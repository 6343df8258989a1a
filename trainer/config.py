"""Settings of the trainer; imports pydantic only, so that a config is read without torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

AdvantageName = Literal["pooled", "within_harness", "shrinkage", "leave_one_out", "centred"]
Aggregation = Literal["token", "trajectory", "constant"]
RatioKind = Literal["token", "sequence", "decoupled"]
Packing = Literal["auto", "packed", "padded"]


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
    gradient_checkpointing: bool = Field(False, description="Recompute activations in backward.")
    seed: int = Field(0, description="Of shuffles and of torch.")
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
        if self.kl_beta > 0 and self.zero_stage == 3:
            raise ValueError(
                f"trainer.kl_beta is {self.kl_beta} with zero_stage 3: the reference model is held "
                "whole on every rank; use zero_stage 2 or kl_beta 0"
            )
        return self
