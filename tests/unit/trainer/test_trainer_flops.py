"""FLOPs of a step, against sums done by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_trainer import VOCABULARY, save_tiny_model

from trainer.compat import load_model
from trainer.config import LoRAConfig, TrainerConfig
from trainer.flops import GPU_PEAKS, count_flops, peak_flops
from trainer.lora import add_lora

BODY = 2 * (4 * 64 * 64 + 3 * 64 * 128)  # 2 layers: q, k, v, o and the MLP's three matrices
HEAD = VOCABULARY * 64
ATTENTION = 2 * 2 * 32


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_costs_six_per_weight_and_token_and_attention_its_square(
    tmp_path: Path, tied: bool
) -> None:
    model = load_model(str(save_tiny_model(tmp_path, tied)), TrainerConfig())
    flops = count_flops(model)
    assert flops is not None
    found = flops(np.array([10, 20]), 3)
    assert found == 6 * BODY * 30 + 6 * HEAD * 3 + 6 * ATTENTION * (100 + 400)


def test_frozen_weights_have_no_weight_gradient(tmp_path: Path) -> None:
    model = load_model(str(save_tiny_model(tmp_path)), TrainerConfig())
    add_lora(model, LoRAConfig(rank=4, targets=("q_proj",)), seed=0)
    flops = count_flops(model)
    assert flops is not None
    adapter = 2 * 4 * (64 + 64)
    expected = (4 * BODY + 6 * adapter) * 30 + 4 * HEAD * 3 + 6 * ATTENTION * 500
    assert flops(np.array([10, 20]), 3) == expected


def test_a_mixture_of_experts_is_not_counted(tmp_path: Path) -> None:
    model = load_model(str(save_tiny_model(tmp_path)), TrainerConfig())
    model.config.num_experts = 8
    assert count_flops(model) is None


def test_the_peak_of_a_cpu_is_measured() -> None:
    peak = peak_flops(torch.device("cpu"), "fp32")
    assert peak is not None
    assert 1e8 < peak < 1e15


def test_a_gpu_is_found_by_the_longest_name_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def peak(name: str, dtype: str) -> float | None:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: name)
        return peak_flops(torch.device("cuda"), dtype)

    assert peak("NVIDIA H100 PCIe", "bf16") == 756e12
    assert peak("NVIDIA H100 80GB HBM3", "bf16") == 989e12
    assert peak("NVIDIA L40S", "fp32") == 91.6e12
    assert peak("NVIDIA A10G", "bf16") == 70e12
    assert peak("Some Future Card", "bf16") is None
    names = list(GPU_PEAKS)
    for i, name in enumerate(names):
        assert not any(earlier in name for earlier in names[:i]), name
