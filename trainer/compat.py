"""Names of DeepSpeed, TRL and transformers that change between minor versions, in one place."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from trainer.config import TrainerConfig
from trainer.errors import TrainerError


def deepspeed_module(device: str) -> Any:
    """DeepSpeed, told which accelerator to use before its first import.

    On CPU its shared-memory collective would be compiled at the first start (over a minute, and it
    needs a compiler); gloo does the same work.
    """
    os.environ["DS_ACCELERATOR"] = device
    import deepspeed
    import deepspeed.ops

    if device == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    from deepspeed.accelerator import get_accelerator

    found = get_accelerator().device_name()
    if not found.startswith(device):
        raise TrainerError(
            f"trainer.device is {device!r} but DeepSpeed already runs on {found!r} in this process; "
            "use one device a process"
        )
    return deepspeed


def deepspeed_config(config: TrainerConfig) -> dict[str, Any]:
    """The DeepSpeed configuration of a trainer configuration."""
    out: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        # The number of micro-batches differs from step to step: N × backward, then one step().
        "managed_gradient_accumulation": False,
        "zero_optimization": {"stage": config.zero_stage, "overlap_comm": False},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
        # In fp32 without ZeRO the engine clips itself, to learn the norm (DeepSpeed drops it).
        "gradient_clipping": 0.0 if plain_optimizer(config) else config.grad_clip,
    }
    if config.dtype == "bf16":
        out["bf16"] = {"enabled": True}
        out["data_types"] = {"grad_accum_dtype": "fp32"}
    return out


def plain_optimizer(config: TrainerConfig) -> bool:
    """Whether DeepSpeed steps torch's optimiser itself, without a ZeRO or bf16 wrapper."""
    return config.zero_stage == 0 and config.dtype == "fp32"


def forget_zero3() -> None:
    """Make from_pretrained load whole models again."""
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()  # type: ignore[no-untyped-call]


def remember_zero3(ds_config: dict[str, Any]) -> object | None:
    """Tell transformers about ZeRO-3, so that from_pretrained shards as it loads.

    Keep the returned object alive as long as the engine: transformers holds it weakly. TRL's fused
    head reads it too, to gather the head's weight.
    """
    if ds_config["zero_optimization"]["stage"] != 3:
        return None
    from transformers.integrations.deepspeed import HfDeepSpeedConfig

    return HfDeepSpeedConfig(ds_config)  # type: ignore[no-untyped-call]


def gathered(parameters: list[nn.Parameter], stage: int) -> AbstractContextManager[Any]:
    """Whole parameters within the context, on every rank; a collective under ZeRO-3."""
    if stage != 3:
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(parameters)


def add_fused_head(model: Any, temperature: float) -> None:
    """Give `model.forward` TRL's fused head: log-probs and entropy without [tokens, vocab] logits."""
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(
        model, temperature=temperature, cast_lm_head_to_fp32=True, outputs=("log_probs", "entropy")
    )


def fused_arguments(labels: torch.Tensor) -> dict[str, Any]:
    """Arguments of a fused call on already selected hidden states; labels int64 [k]."""
    return {"fused_lm_head": True, "shift_labels": labels[None], "use_cache": False}


def load_model(path: str, config: TrainerConfig) -> Any:
    """A causal language model in the training dtype, with every dropout at 0.

    Dropout would make the ratio of policy and behaviour differ from 1 on policy.
    """
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if config.dtype == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation=config.attn_implementation
    )
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.config.use_cache = False
    return model


def has_varlen_attention(attn_implementation: str) -> bool:
    """Whether the attention kernel takes packed rows without a quadratic mask."""
    return attn_implementation.startswith(("flash_attention", "kernels-community/flash"))


def quiet() -> None:
    """No progress bars and no start-up chatter in a rank's log."""
    import logging

    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
