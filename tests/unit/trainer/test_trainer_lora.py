"""LoRA inside the trainer's model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.compat import load_model, lora_layers
from trainer.config import LoRAConfig, TrainerConfig
from trainer.errors import TrainerError
from trainer.lora import ADAPTER_CONFIG, add_lora, base_only, plain_weights, write_adapter_config

IDS = torch.tensor([[3, 4, 5, 6]])
RANK_2 = LoRAConfig(rank=2, alpha=4, targets=("q_proj", "up_proj"))


def adapted(path: Path, config: LoRAConfig = RANK_2, seed: int = 0) -> Any:
    model = load_model(str(path), TrainerConfig())
    add_lora(model, config, seed)
    return model


def shake(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)


def test_a_fresh_adapter_changes_nothing_and_only_it_is_trained(tiny_model: Path) -> None:
    model = adapted(tiny_model)
    plain = load_model(str(tiny_model), TrainerConfig())
    assert torch.equal(model(IDS).logits, plain(IDS).logits)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 2 * 2  # layers, targets, A and B
    assert all("lora_" in name for name in trained)
    assert type(model) is type(plain)


def test_all_linear_means_every_linear_layer_but_the_head(tiny_model: Path) -> None:
    names = {name.rsplit(".", 1)[1] for name, _ in lora_layers(adapted(tiny_model, LoRAConfig()))}
    assert names == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
    }  # fmt: skip


def test_the_base_is_the_reference_and_comes_back_adapted(tiny_model: Path) -> None:
    model = adapted(tiny_model)
    shake(model)
    plain = load_model(str(tiny_model), TrainerConfig())
    before = model(IDS).logits
    with base_only(model):
        assert torch.equal(model(IDS).logits, plain(IDS).logits)
        assert all(p.requires_grad == ("lora_" in n) for n, p in model.named_parameters())
    assert torch.equal(model(IDS).logits, before)
    assert not torch.equal(before, plain(IDS).logits)


def test_merged_weights_are_those_of_a_plain_model_that_computes_the_same(
    tiny_model: Path,
) -> None:
    model = adapted(tiny_model)
    shake(model)
    plain = load_model(str(tiny_model), TrainerConfig())
    weights = plain_weights(model)
    names = [weight.name for weight in weights]
    assert names == sorted(name for name, _ in plain.named_parameters())
    for weight, (_, parameter) in zip(weights, sorted(plain.named_parameters()), strict=True):
        assert weight.shape == tuple(parameter.shape)
        parameter.data.copy_(weight.tensor())
    torch.testing.assert_close(plain(IDS).logits, model(IDS).logits, atol=1e-4, rtol=1e-4)


def test_initial_adapters_depend_on_the_seed_alone(tiny_model: Path) -> None:
    def first(seed: int) -> torch.Tensor:
        torch.manual_seed(17)
        model = adapted(tiny_model, seed=seed)
        return next(p for n, p in model.named_parameters() if "lora_A" in n).detach()

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


def test_targets_that_no_layer_has_are_refused(tiny_model: Path) -> None:
    with pytest.raises(TrainerError, match="does not fit Qwen3ForCausalLM"):
        adapted(tiny_model, LoRAConfig(targets=("no_such_layer",)))


def test_the_adapter_configuration_names_its_base(tiny_model: Path, tmp_path: Path) -> None:
    write_adapter_config(adapted(tiny_model), tmp_path, tiny_model)
    found = json.loads((tmp_path / ADAPTER_CONFIG).read_text())
    assert found["base_model_name_or_path"] == str(tiny_model)
    assert (found["r"], found["lora_alpha"], found["lora_dropout"]) == (2, 4, 0.0)
    assert sorted(found["target_modules"]) == ["q_proj", "up_proj"]
