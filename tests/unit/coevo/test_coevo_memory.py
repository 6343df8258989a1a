"""Memory by the formulas of docs/models.md: against numbers worked by hand, and against autograd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from qwen3_shapes import PARAMETERS, QWEN3, write_config

from coevo.config import RunConfig, load_config
from coevo.memory import (
    GIB,
    HEADROOM,
    activations,
    disk_parts,
    engine_parts,
    kv_tokens,
    plan,
    trainer_parts,
)
from coevo.model_shape import ModelError, ModelShape, shape_of, shape_of_architecture
from trainer.config import LoRAConfig, OffloadConfig, TrainerConfig
from trainer.warmstart_config import ArchitectureConfig

ADAPTERS = ("trainer.lora.rank=16", "trainer.offload.optimizer=none")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelShape]:
    root = tmp_path_factory.mktemp("qwen3")
    return {name: shape_of(write_config(name, root / name)) for name in QWEN3}


def recipe(name: str, *overrides: str) -> RunConfig:
    return load_config(f"configs/models/qwen3_{name}.yaml", overrides)


@pytest.mark.parametrize("name", QWEN3)
def test_a_config_alone_gives_the_published_number_of_parameters(
    name: str, shapes: dict[str, ModelShape]
) -> None:
    assert shapes[name].parameters == PARAMETERS[name]


def test_qwen3_8b_under_zero_3_on_eight_gpus_is_what_the_hand_computes(
    shapes: dict[str, ModelShape],
) -> None:
    trainer = TrainerConfig(
        device="cuda", dtype="bf16", zero_stage=3, world_size=8, micro_batch_tokens=16384,
        gradient_checkpointing=True,
    )  # fmt: skip
    device, host = trainer_parts(shapes["8b"], trainer, 4096)
    n = 8_190_735_360
    layer = 2 * (6 * 4096 + 3 * 4096 + 2 * 1024 + 4 * 12288) + 8 * 4096
    assert device == {
        "weights": n * 2 // 8,  # 2.05 GB
        "gradients": n * 4 // 8 + n * 2 // 8,  # fp32 sums and bf16 ones: 6.14 GB
        "optimizer": n * 12 // 8,  # fp32 master, two moments: 12.29 GB
        "activations": 16384 * (36 * 2 * 4096 + layer),  # 8.25 GB
        "gathered weights": 2_000_000_000,
        "reduce buffer": 1_000_000_000,
    }
    assert sum(device.values()) == 31_731_228_672
    assert host == {}


def test_offload_moves_states_to_the_host_and_shards_them(shapes: dict[str, ModelShape]) -> None:
    trainer = TrainerConfig(
        device="cuda", dtype="bf16", zero_stage=3, world_size=8,
        offload=OffloadConfig(optimizer="cpu", params="cpu"),
    )  # fmt: skip
    device, host = trainer_parts(shapes["8b"], trainer, 4096)
    n = PARAMETERS["8b"]
    assert host == {"offloaded weights": n * 2 // 8, "offloaded optimizer": n * 12 // 8}
    assert {"weights", "optimizer"}.isdisjoint(device)


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer"),
    [(0, 4, 4, 8), (1, 4, 4, 3), (2, 4, 1, 3), (3, 1, 1, 3)],
)
def test_a_stage_shards_one_thing_more_over_four_ranks_in_fp32(
    stage: Any, weights: int, gradients: int, optimizer: int
) -> None:
    shape = shape_of_architecture(ArchitectureConfig())
    trainer = TrainerConfig(zero_stage=stage, world_size=4)
    device, _ = trainer_parts(shape, trainer, 100)
    n = shape.parameters
    assert (device["weights"], device["gradients"], device["optimizer"]) == (
        n * weights, n * gradients, n * optimizer,
    )  # fmt: skip


def test_adapters_train_few_numbers_over_frozen_weights(shapes: dict[str, ModelShape]) -> None:
    shape = shapes["8b"]
    # q, o: 4096 + 4096; k, v: 4096 + 1024; gate, up, down: 4096 + 12288; 36 layers.
    assert shape.lora_parameters(16, "all-linear") == 16 * 36 * (2 * 8192 + 2 * 5120 + 3 * 16384)
    assert shape.lora_parameters(16, ("q_proj",)) == 16 * 36 * 8192
    trainer = TrainerConfig(device="cuda", dtype="bf16", zero_stage=1, lora=LoRAConfig(rank=16))
    device, _ = trainer_parts(shape, trainer, 4096)
    adapters = 43_646_976
    assert device["weights"] == (PARAMETERS["8b"] + adapters) * 2
    assert device["optimizer"] == adapters * 12


def test_the_engines_cache_and_weights_are_split_over_its_gpus(
    shapes: dict[str, ModelShape],
) -> None:
    config = recipe("32b")
    shape = shapes["32b"]
    # Keys and values of 64 layers, 8 heads of 128, bf16: 256 KiB a token; 16 GiB on each of 2 GPUs.
    assert shape.kv_bytes_per_token(2) == 256 << 10
    assert kv_tokens(shape, config) == (32 << 30) // (256 << 10)
    assert engine_parts(shape, config)["weights"] == PARAMETERS["32b"]


@pytest.mark.parametrize("name", QWEN3)
@pytest.mark.parametrize("overrides", [(), ADAPTERS], ids=["all weights", "adapters"])
def test_every_recipe_fits_gpus_of_80_gib(
    name: str, overrides: tuple[str, ...], shapes: dict[str, ModelShape]
) -> None:
    needed = plan(shapes[name], recipe(name, *overrides))
    assert needed.gpu <= HEADROOM * 80 * GIB


def test_side_by_side_a_gpu_holds_either_and_in_turns_both_fit_one(
    shapes: dict[str, ModelShape],
) -> None:
    apart = plan(shapes["8b"], recipe("8b", "resources.placement=disaggregated"))
    together = plan(shapes["8b"], recipe("8b"))
    assert apart.gpu == max(sum(apart.engine.values()), sum(apart.trainer.values()))
    # While the trainer works the sleeping engine keeps its context only.
    assert together.gpu == sum(together.trainer.values()) + 2 * GIB


def test_the_disk_holds_the_weights_of_every_round_and_three_trainer_states(
    shapes: dict[str, ModelShape],
) -> None:
    parts = disk_parts(shapes["0.6b"], recipe("0.6b"))
    n = PARAMETERS["0.6b"]
    assert parts["weights of each round"] == 10 * 2 * n
    assert parts["trainer states"] == 3 * 14 * n
    assert parts["buffer"] == 10 * 64 * 8 * 4096 * 17


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_autograd_keeps_what_the_formula_says(family: str, checkpointing: bool) -> None:
    """Measured by hooks on what two and three layers save; the difference is one layer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    make: Any = {
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[family]
    tokens = 256
    trainer = TrainerConfig(micro_batch_tokens=tokens, gradient_checkpointing=checkpointing)

    def kept(layers: int) -> tuple[int, int]:
        config = ArchitectureConfig(
            family=family, hidden=256, layers=layers, heads=8, kv_heads=2, intermediate=1024
        )  # type: ignore[arg-type]
        model = make[1](
            make[0](
                vocab_size=300, hidden_size=256, intermediate_size=1024, num_hidden_layers=layers,
                num_attention_heads=8, num_key_value_heads=2, head_dim=32, use_cache=False,
            )
        )  # fmt: skip
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        saved: dict[int, Any] = {}

        def pack(tensor: Any) -> Any:
            saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model.base_model(input_ids=torch.arange(tokens)[None])
        size = sum(t.untyped_storage().nbytes() for at, t in saved.items() if at not in own)
        return size, activations(shape_of_architecture(config), trainer, 1)

    (two, formula_two), (three, formula_three) = kept(2), kept(3)
    assert three - two == pytest.approx(formula_three - formula_two, rel=0.15)


def test_a_directory_of_another_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no config\.json"):
        shape_of(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(ModelError, match="no causal language model"):
        shape_of(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read as JSON"):
        shape_of(tmp_path)
