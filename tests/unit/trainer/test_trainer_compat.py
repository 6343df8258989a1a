"""The names of DeepSpeed, TRL and transformers that the trainer relies on."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch

from trainer import compat
from trainer.config import TrainerConfig


def test_deepspeed_has_caller_owned_accumulation_and_the_op_table() -> None:
    deepspeed = compat.deepspeed_module("cpu")
    assert deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] is False
    from deepspeed.runtime.engine import DeepSpeedEngine

    for name in ("backward", "managed_gradient_accumulation", "get_global_grad_norm", "get_lr"):
        assert callable(getattr(DeepSpeedEngine, name))


def test_trl_has_the_fused_head_with_the_arguments_we_pass() -> None:
    from trl.trainer.utils import add_fused_lm_head

    expected = {"model", "temperature", "cast_lm_head_to_fp32", "outputs"}
    assert expected <= set(inspect.signature(add_fused_lm_head).parameters)


def test_transformers_remembers_zero3_only_while_the_config_lives() -> None:
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

    kept = compat.remember_zero3(compat.deepspeed_config(TrainerConfig(zero_stage=3)))
    assert kept is not None
    assert is_deepspeed_zero3_enabled()
    compat.forget_zero3()
    assert not is_deepspeed_zero3_enabled()


def test_a_loaded_model_has_no_dropout_and_no_cache(tiny_model: Path) -> None:
    model = compat.load_model(str(tiny_model), TrainerConfig())
    assert model.config.use_cache is False
    assert all(m.p == 0 for m in model.modules() if isinstance(m, torch.nn.Dropout))
    assert hasattr(model, "base_model")
    assert model.base_model is not model


def test_bf16_accumulates_gradients_in_fp32() -> None:
    found = compat.deepspeed_config(TrainerConfig(dtype="bf16", zero_stage=2))
    assert found["bf16"] == {"enabled": True}
    assert found["data_types"] == {"grad_accum_dtype": "fp32"}
    assert found["managed_gradient_accumulation"] is False


def test_offloaded_states_keep_torchs_optimiser() -> None:
    config = TrainerConfig.model_validate(
        {"zero_stage": 3, "offload": {"optimizer": "cpu", "params": "cpu"}}
    )
    found = compat.deepspeed_config(config)
    assert found["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert found["zero_optimization"]["offload_param"] == {"device": "cpu"}
    assert found["zero_force_ds_cpu_optimizer"] is False
    inference = compat.inference_config(config)["zero_optimization"]
    assert inference == {"stage": 3, "overlap_comm": False, "offload_param": {"device": "cpu"}}


def test_deepspeed_reads_universal_checkpoints_by_a_setting_of_its_config() -> None:
    from deepspeed.checkpoint import ds_to_universal
    from deepspeed.runtime.engine import DeepSpeedEngine

    assert callable(ds_to_universal.main)
    source = inspect.getsource(DeepSpeedEngine.load_universal_checkpoint)
    assert "self._config.load_universal_checkpoint" in source


def test_peft_scales_adapters_without_switching_gradients() -> None:
    from peft.helpers import rescale_adapter_scale
    from peft.tuners.lora import LoraLayer

    assert set(inspect.signature(rescale_adapter_scale).parameters) == {"model", "multiplier"}
    assert "requires_grad" not in inspect.getsource(rescale_adapter_scale)
    assert {"get_base_layer"} <= set(dir(LoraLayer))
