"""AdamW over what is trained, with warm-up, and gradient clipping where DeepSpeed reports no norm."""

from __future__ import annotations

import math
from typing import Any

import torch

from trainer.config import TrainerConfig


def make_optimizer(model: Any, config: TrainerConfig) -> torch.optim.AdamW:
    """AdamW; weight decay on matrices only."""
    decay: list[torch.nn.Parameter] = []
    rest: list[torch.nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            # Under ZeRO-3 a parameter is already sharded; ds_shape is its whole shape.
            rank = len(getattr(parameter, "ds_shape", parameter.shape))
            (decay if rank > 1 else rest).append(parameter)
    groups: list[dict[str, Any]] = [{"params": decay, "weight_decay": config.weight_decay}]
    if rest:
        groups.append({"params": rest, "weight_decay": 0.0})
    return torch.optim.AdamW(
        groups,
        lr=config.lr,
        betas=config.betas,
        eps=config.adam_eps,
        weight_decay=0.0,
        fused=config.offload.optimizer == "cpu" or None,
    )


def warmup(
    optimizer: torch.optim.Optimizer, config: TrainerConfig
) -> torch.optim.lr_scheduler.LambdaLR:
    """Linear over `warmup_steps`, then constant."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / max(config.warmup_steps, 1))
    )


class Clip:
    """Clips before each step of a plain optimiser and keeps the norm, which DeepSpeed drops."""

    def __init__(self, optimizer: torch.optim.Optimizer, limit: float) -> None:
        self._limit = limit or math.inf
        self.norm = math.nan
        optimizer.register_step_pre_hook(self._clip)

    def _clip(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for g in optimizer.param_groups for p in g["params"]]
        self.norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._limit))
