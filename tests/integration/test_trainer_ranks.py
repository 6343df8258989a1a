"""The trainer on real DeepSpeed: gloo ranks, ZeRO stages, LoRA, exact resume, other rank counts."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_pool import RankPool, metrics
from safetensors.torch import load_file
from tiny_trainer import save_tiny_model

pytestmark = pytest.mark.slow

# One optimiser step with a huge ε and no clip moves every weight by −lr/ε times its gradient: the
# published weights then show the gradient itself, whatever holds it in between.
LINEAR: dict[str, Any] = {
    "lr": 1e4,
    "adam_eps": 1e4,
    "grad_clip": 0.0,
    "ratio_mask": None,
    "steps_per_round": 1,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def pool(model: Path, world_size: int) -> Iterator[RankPool]:
    ranks = RankPool(model, world_size)
    try:
        yield ranks
    finally:
        ranks.kill()


@pytest.fixture(scope="module")
def one(model: Path) -> Iterator[RankPool]:
    yield from pool(model, 1)


@pytest.fixture(scope="module")
def two(model: Path) -> Iterator[RankPool]:
    yield from pool(model, 2)


def difference(first: Path, second: Path) -> float:
    a, b = load_file(first), load_file(second)
    assert a.keys() == b.keys()
    return max(float((a[k] - b[k]).abs().max()) for k in a)


# Eight rows of 20 tokens, the last of which is not run: 19, 4·19 and 8·19 tokens a micro-batch.
EQUAL = {"trajectories": 8, "segments": 1, "lengths": [20, 21]}
# Segments of several lengths, some without advantage, in an uneven number of micro-batches.
RAGGED = {"trajectories": 7, "segments": 2}


def test_the_cut_into_micro_batches_ranks_and_zero_stages_does_not_change_the_gradient(
    model: Path, one: RankPool, two: RankPool, tmp_path: Path
) -> None:
    cuts = [
        {"config": {**LINEAR, "micro_batch_tokens": n}, "batch": EQUAL, "out": tmp_path / f"1x{n}"}
        for n in (19, 76, 152)
    ]
    layouts = [
        {
            "config": {**LINEAR, "packing": p, "micro_batch_tokens": 60},
            "batch": RAGGED,
            "out": tmp_path / p,
        }
        for p in ("packed", "padded")
    ]
    one.run(*cuts, *layouts)
    stages = [
        {
            "config": {**LINEAR, "zero_stage": z, "micro_batch_tokens": 76},
            "batch": EQUAL,
            "out": tmp_path / f"2z{z}",
        }
        for z in range(4)
    ]
    ragged = [
        {
            "config": {**LINEAR, "zero_stage": z, "micro_batch_tokens": 60},
            "batch": RAGGED,
            "out": tmp_path / f"ragged{z}",
        }
        for z in range(4)
    ]
    two.run(*stages, *ragged)
    start = model / "model.safetensors"
    assert difference(tmp_path / "1x19", start) > 1e-2
    assert metrics(tmp_path / "1x19")[0]["micro_batches"] == 8
    assert metrics(tmp_path / "1x152")[0]["micro_batches"] == 1
    for other in ("1x76", "1x152", "2z0", "2z1", "2z2", "2z3"):
        assert difference(tmp_path / "1x19", tmp_path / other) < 1e-6, other
    for other in ("padded", "ragged0", "ragged1", "ragged2", "ragged3"):
        assert difference(tmp_path / "packed", tmp_path / other) < 1e-6, other
    for name in ("loss", "entropy", "abs_dlogp", "sampled_tokens", "ratio_p50"):
        values = [
            metrics(tmp_path / o)[0][name] for o in ("packed", "padded", "ragged0", "ragged3")
        ]
        assert values == pytest.approx([values[0]] * 4, abs=1e-5), name
    # An odd number over two ranks: one of them runs a dummy beside the other's last.
    assert metrics(tmp_path / "ragged3")[0]["micro_batches"] % 2 == 1
    norms = [metrics(tmp_path / f"ragged{z}")[0]["grad_norm"] for z in range(4)]
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-4)


@pytest.mark.parametrize("aggregation", ["token", "trajectory"])
def test_the_cut_into_segments_does_not_change_the_gradient(
    model: Path, one: RankPool, two: RankPool, tmp_path: Path, aggregation: str
) -> None:
    def case(name: str, split: bool, stage: int = 0) -> dict[str, Any]:
        config = {**LINEAR, "aggregation": aggregation, "zero_stage": stage}
        return {"config": config, "two_turns": split, "out": tmp_path / name}

    one.run(case("whole", False), case("split", True))
    two.run(case("split2", True, 2), case("whole3", False, 3))
    assert difference(tmp_path / "whole", model / "model.safetensors") > 1e-2
    for other in ("split", "split2", "whole3"):
        assert difference(tmp_path / "whole", tmp_path / other) < 1e-6, other


def test_rewards_that_differ_by_rounding_train_nothing(
    model: Path, two: RankPool, tmp_path: Path
) -> None:
    case = {"config": {"zero_stage": 2, "lr": 1.0}, "batch": {"near_equal": True}}
    two.run({**case, "out": tmp_path / "out"})
    assert {m["skipped"] for m in metrics(tmp_path / "out")} == {1.0}
    assert difference(tmp_path / "out", model / "model.safetensors") == 0


def test_the_sequence_ratio_sums_a_trajectory_over_ranks(
    one: RankPool, two: RankPool, tmp_path: Path
) -> None:
    config = {**LINEAR, "ratio": "sequence", "aggregation": "trajectory", "micro_batch_tokens": 60}
    one.run({"config": dict(config), "batch": RAGGED, "out": tmp_path / "1"})
    two.run({"config": dict(config), "batch": RAGGED, "out": tmp_path / "2"})
    assert difference(tmp_path / "1", tmp_path / "2") < 1e-6


def test_a_resumed_process_has_the_same_losses_bit_by_bit(
    model: Path, two: RankPool, tmp_path: Path
) -> None:
    settings: list[dict[str, Any]] = [
        {"zero_stage": 0},
        {"zero_stage": 3},
        {"zero_stage": 2, "dtype": "bf16"},
        {"zero_stage": 3, "offload": {"optimizer": "cpu", "params": "cpu"}},
        {"zero_stage": 0, "lora": {"rank": 4}},
        {"zero_stage": 3, "lora": {"rank": 4}},
    ]
    # A batch of their own shape for each: mini-batches, warm-up and schedule are resumed too.
    common = {"lr": 1e-3, "ratio_mask": None, "steps_per_round": 2, "minibatches": 2}
    saving, loading = [], []
    for i, extra in enumerate(settings):
        config = {**common, **extra, "warmup_steps": 6}
        saving.append(
            {
                "config": dict(config),
                "out": tmp_path / f"a{i}",
                "save": str(tmp_path / f"ck{i}"),
                "more": 2,
            }
        )
        loading.append(
            {
                "config": dict(config),
                "out": tmp_path / f"b{i}",
                "load": str(tmp_path / f"ck{i}"),
                "rounds": 2,
            }
        )
    two.run(*saving)
    fresh = RankPool(model, 2)
    try:
        fresh.run(*loading)
        fresh.close()
    finally:
        fresh.kill()
    for i in range(len(settings)):
        straight, resumed = metrics(tmp_path / f"a{i}")[2:], metrics(tmp_path / f"b{i}")
        for name in ("step", "loss", "grad_norm", "lr", "abs_dlogp", "entropy"):
            assert [m[name] for m in straight] == [m[name] for m in resumed], (settings[i], name)


# ---- LoRA


LORA: dict[str, Any] = {"lora": {"rank": 4, "alpha": 8, "targets": ["q_proj", "down_proj"]}}


def test_an_adapter_trains_alike_at_every_stage_and_leaves_the_base_alone(
    model: Path, one: RankPool, two: RankPool, tmp_path: Path
) -> None:
    common = {"lr": 1e-2, "ratio_mask": None, "steps_per_round": 2, **LORA}

    def case(name: str, **extra: Any) -> dict[str, Any]:
        return {
            "config": {**common, **extra},
            "batch": RAGGED,
            "out": tmp_path / name,
            "adapter": tmp_path / f"{name}.peft",
            "save": tmp_path / f"{name}.ck",
        }

    one.run(case("1"))
    two.run(*(case(f"2z{z}", zero_stage=z) for z in range(4)))
    for z in range(4):
        assert difference(tmp_path / "1", tmp_path / f"2z{z}") < 1e-4, z
    start, trained = load_file(model / "model.safetensors"), load_file(tmp_path / "1")
    changed = {name for name in start if not torch.equal(start[name], trained[name])}
    assert {name.rsplit(".", 2)[1] for name in changed} == {"q_proj", "down_proj"}
    # The checkpoint has the adapters and their moments, 12 bytes a weight, not the base.
    adapter = load_file(tmp_path / "2z3.peft" / "adapter_model.safetensors")
    weights = sum(t.numel() for t in adapter.values())
    assert max(stored(tmp_path / f"2z{z}.ck") for z in range(4)) < 3 * 12 * weights + 80_000
    assert weights < 0.1 * sum(t.numel() for t in start.values())

    import peft
    from transformers import AutoModelForCausalLM

    ids = torch.tensor([[5, 6, 7, 8]])
    merged = AutoModelForCausalLM.from_pretrained(model)
    merged.load_state_dict(trained, strict=False)
    base = AutoModelForCausalLM.from_pretrained(model)
    served = peft.PeftModel.from_pretrained(base, tmp_path / "1.peft")(ids).logits
    torch.testing.assert_close(served, merged(ids).logits, atol=1e-4, rtol=1e-4)


def stored(checkpoint: Path) -> int:
    return sum(p.stat().st_size for p in checkpoint.rglob("*.pt"))


def test_sharded_merged_weights_arrive_byte_for_byte_at_a_receiver(
    two: RankPool, tmp_path: Path
) -> None:
    from rollout.policy.collective import receive
    from rollout.policy.weights import fingerprint_file

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    config = {"lr": 1e-2, "zero_stage": 3, "publish_bucket_bytes": 1 << 15, **LORA}
    out = tmp_path / "w"
    sending = threading.Thread(
        target=two.run, args=[{"config": config, "out": out, "broadcast": port}]
    )
    sending.start()
    plan_file = out.with_suffix(".plan")
    while sending.is_alive() and not plan_file.exists():
        time.sleep(0.05)
    plan = pickle.loads(plan_file.read_bytes())
    assert len(plan.buckets) > 5
    got = {n: t.clone() for n, t in receive(plan, "engine 0", "cpu", fingerprint_file(out))}
    sending.join()
    expected = load_file(out)
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in got)


# ---- Reference model, recomputation, offload


def test_the_reference_is_the_model_that_training_started_from(
    one: RankPool, two: RankPool, tmp_path: Path
) -> None:
    common = {"lr": 1e-3, "ratio_mask": None, "steps_per_round": 2, "kl_beta": 0.5}

    def case(name: str, **extra: Any) -> dict[str, Any]:
        return {"config": {**common, **extra}, "batch": RAGGED, "out": tmp_path / name}

    one.run(case("1"), case("1l", **LORA))
    two.run(case("2"), case("2z3", zero_stage=3), case("2z3l", zero_stage=3, **LORA))
    for first, others in (("1", ("2", "2z3")), ("1l", ("2z3l",))):
        start, then = metrics(tmp_path / first)
        assert start["kl_reference"] == pytest.approx(0, abs=1e-9)
        assert then["kl_reference"] > 1e-6
        for other in others:
            for name in ("kl_reference", "loss", "grad_norm"):
                found = [m[name] for m in metrics(tmp_path / other)]
                assert found == pytest.approx([start[name], then[name]], rel=1e-3, abs=1e-7), other


def test_recomputed_activations_and_offloaded_states_give_the_same_gradient(
    one: RankPool, two: RankPool, tmp_path: Path
) -> None:
    def case(name: str, **extra: Any) -> dict[str, Any]:
        return {"config": {**LINEAR, **extra}, "batch": RAGGED, "out": tmp_path / name}

    one.run(case("plain"), case("recomputed", gradient_checkpointing=True))
    two.run(
        case("recomputed3", gradient_checkpointing=True, zero_stage=3),
        case("offload2", zero_stage=2, offload={"optimizer": "cpu"}),
        case("offload3", zero_stage=3, offload={"optimizer": "cpu", "params": "cpu"}),
    )
    for other in ("recomputed", "recomputed3", "offload2", "offload3"):
        assert difference(tmp_path / "plain", tmp_path / other) < 1e-6, other


# ---- Another number of ranks


def test_a_checkpoint_continues_on_another_number_of_ranks(
    one: RankPool, two: RankPool, tmp_path: Path
) -> None:
    every: list[dict[str, Any]] = [
        *({"zero_stage": z} for z in range(4)),
        {"zero_stage": 2, **LORA},
        {"zero_stage": 3, **LORA},
    ]
    some: list[dict[str, Any]] = [{"zero_stage": 1}, {"zero_stage": 3}]
    common = {"lr": 1e-3, "ratio_mask": None, "steps_per_round": 1, "warmup_steps": 3}
    for saver, loader, tag, settings in ((two, one, "2to1", every), (one, two, "1to2", some)):
        saving, loading = [], []
        for i, extra in enumerate(settings):
            config = {**common, **extra}
            saved = tmp_path / f"{tag}{i}.ck"
            saving.append(
                {"config": dict(config), "out": tmp_path / f"a{tag}{i}", "save": saved, "more": 3}
            )
            loading.append(
                {
                    "config": dict(config),
                    "out": tmp_path / f"b{tag}{i}",
                    "load": saved,
                    "convert": extra["zero_stage"] > 0,
                    "rounds": 3,
                }
            )
        saver.run(*saving)
        loader.run(*loading)
        for i, extra in enumerate(settings):
            straight = metrics(tmp_path / f"a{tag}{i}")[1:]
            resumed = metrics(tmp_path / f"b{tag}{i}")
            for name in ("step", "lr", "loss", "grad_norm", "entropy"):
                expected = [m[name] for m in straight]
                found = [m[name] for m in resumed]
                assert found == pytest.approx(expected, rel=1e-5, abs=1e-6), (tag, extra, name)
