"""Names of DeepSpeed, TRL and transformers that change between minor versions, in one place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.config import LoRAConfig, TrainerConfig
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
    zero: dict[str, Any] = {"stage": config.zero_stage, "overlap_comm": False}
    if config.offload.optimizer == "cpu":
        zero["offload_optimizer"] = {"device": "cpu"}
    if config.offload.params == "cpu":
        zero["offload_param"] = {"device": "cpu"}
    out: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        # The number of micro-batches differs from step to step: N × backward, then one step().
        "managed_gradient_accumulation": False,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        # Offloaded states are stepped by torch's fused AdamW: DeepSpeed's own has to be compiled at
        # the first start (almost two minutes) for the same arithmetic.
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
        # In fp32 without ZeRO the engine clips itself, to learn the norm (DeepSpeed drops it).
        "gradient_clipping": 0.0 if plain_optimizer(config) else config.grad_clip,
    }
    if config.dtype == "bf16":
        out["bf16"] = {"enabled": True}
        out["data_types"] = {"grad_accum_dtype": "fp32"}
    return out


def inference_config(config: TrainerConfig) -> dict[str, Any]:
    """The DeepSpeed configuration of a model that is only run, sharded as the trained one is."""
    out = deepspeed_config(config)
    zero = {k: v for k, v in out["zero_optimization"].items() if k != "offload_optimizer"}
    return {**out, "zero_optimization": zero}


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


@contextmanager
def universal_loading(engine: Any) -> Iterator[None]:
    """Within the context `engine.load_checkpoint` reads the universal format."""
    config = engine._config
    config.load_universal_checkpoint = True
    try:
        yield
    finally:
        config.load_universal_checkpoint = False
    # ZeRO-3 gives all parameter groups one step tensor, which AdamW then counts up once a group.
    for state in engine.optimizer.optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()


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


def inject_lora(model: Any, config: LoRAConfig) -> None:
    """peft's adapters inside the layers of a transformers model, which keeps its class."""
    import peft

    targets = config.targets if isinstance(config.targets, str) else list(config.targets)
    model.add_adapter(
        peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,  # type: ignore[arg-type]
            target_modules=targets,
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
        )
    )


def lora_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """(module name, peft layer) of every adapted layer."""
    from peft.tuners.lora import LoraLayer

    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module


def scaled_lora(model: Any, factor: float) -> AbstractContextManager[None]:
    """The adapters' updates times `factor` within the context.

    Not disable_adapters: that switches requires_grad, on which DeepSpeed's gradient hooks hang.
    """
    from peft.helpers import rescale_adapter_scale

    return rescale_adapter_scale(model, factor)


def save_lora_config(model: Any, adapter: str, directory: Path, base: str) -> None:
    """Write adapter_config.json for inference on the model directory `base`."""
    import copy

    config = copy.copy(model.peft_config[adapter])
    config.inference_mode = True
    config.base_model_name_or_path = base
    config.save_pretrained(str(directory))
