"""The trainer on real DeepSpeed: gloo ranks, ZeRO stages, exact resume, Ray."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_trainer import random_batch, save_tiny_model

from trainer.config import TrainerConfig
from trainer.errors import CheckpointError, TrainerError

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

RANK_PROGRAM = """
import json, sys
from pathlib import Path
from tiny_trainer import random_batch
from trainer.checkpoint import layout_of, seal, staging, verify
from trainer.config import TrainerConfig
from trainer.engine import TrainerEngine
from trainer.publish import publish

job = json.loads(sys.argv[1])
for case in job["cases"]:
    config = TrainerConfig.model_validate(case["config"])
    engine = TrainerEngine(config, job["model"])
    out = Path(case["out"])
    batch = random_batch(**case.get("batch", {}))
    if "load" in case:
        verify(Path(case["load"]), layout_of(config))
        engine.load_shards(Path(case["load"]))
    metrics = []
    for _ in range(case.get("rounds", 1)):
        metrics += engine.train(batch)
    publish(engine.named_weights(), out, write=engine.rank == 0)
    if "save" in case:
        target = Path(case["save"])
        beside = staging(target) if engine.rank == 0 else target.with_name(target.name + ".tmp")
        import torch.distributed
        torch.distributed.barrier()
        engine.save_shards(beside, {})
        torch.distributed.barrier()
        if engine.rank == 0:
            seal(beside, target, layout_of(config), engine.step)
    for _ in range(case.get("more", 0)):
        metrics += engine.train(batch)
    if engine.rank == 0:
        out.with_suffix(".metrics").write_text(json.dumps(metrics))
engine.close()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def launch(model: Path, world_size: int, cases: list[dict[str, Any]]) -> None:
    """Run all cases one after another in `world_size` fresh processes."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    for case in cases:
        case["config"]["world_size"] = world_size
        case["out"] = str(case["out"])
    job = json.dumps({"model": str(model), "cases": cases})
    ranks = []
    for rank in range(world_size):
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(Path(__file__).parent.parent),
        }
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", RANK_PROGRAM, job],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    outputs = [r.communicate(timeout=600)[0] for r in ranks]
    for rank, process in enumerate(ranks):
        assert process.returncode == 0, f"rank {rank}:\n{outputs[rank][-3000:]}"


def difference(first: Path, second: Path) -> float:
    from safetensors.torch import load_file

    a, b = load_file(first), load_file(second)
    assert a.keys() == b.keys()
    return max(float((a[k] - b[k]).abs().max()) for k in a)


def metrics(out: Path) -> list[dict[str, float]]:
    found: list[dict[str, float]] = json.loads(out.with_suffix(".metrics").read_text())
    return found


# Eight rows of 20 tokens, the last of which is not run: 19, 4·19 and 8·19 tokens a micro-batch.
EQUAL = {"trajectories": 8, "segments": 1, "lengths": [20, 21]}
# Segments of several lengths, some without advantage, in an uneven number of micro-batches.
RAGGED = {"trajectories": 7, "segments": 2}


def test_the_cut_into_micro_batches_ranks_and_zero_stages_does_not_change_the_gradient(
    model: Path, tmp_path: Path
) -> None:
    one = [
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
    launch(model, 1, one + layouts)
    two = [
        {
            "config": {**LINEAR, "zero_stage": z, "micro_batch_tokens": 76},
            "batch": EQUAL,
            "out": tmp_path / f"2z{z}",
        }
        for z in range(4)
    ]
    ragged = [
        {
            "config": {**LINEAR, "zero_stage": z, "micro_batch_tokens": 90},
            "batch": RAGGED,
            "out": tmp_path / f"ragged{z}",
        }
        for z in range(4)
    ]
    launch(model, 2, two + ragged)
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
    norms = [metrics(tmp_path / f"ragged{z}")[0]["grad_norm"] for z in range(4)]
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-4)


def test_the_sequence_ratio_sums_a_trajectory_over_ranks(model: Path, tmp_path: Path) -> None:
    config = {**LINEAR, "ratio": "sequence", "aggregation": "trajectory", "micro_batch_tokens": 60}
    launch(model, 1, [{"config": dict(config), "batch": RAGGED, "out": tmp_path / "1"}])
    launch(model, 2, [{"config": dict(config), "batch": RAGGED, "out": tmp_path / "2"}])
    assert difference(tmp_path / "1", tmp_path / "2") < 1e-6


def test_a_resumed_process_has_the_same_losses_bit_by_bit(model: Path, tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [
        {"zero_stage": 0},
        {"zero_stage": 2},
        {"zero_stage": 3},
        {"zero_stage": 2, "dtype": "bf16"},
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
    launch(model, 2, saving)
    launch(model, 2, loading)
    for i in range(len(settings)):
        straight, resumed = metrics(tmp_path / f"a{i}")[2:], metrics(tmp_path / f"b{i}")
        for name in ("step", "loss", "grad_norm", "lr", "abs_dlogp", "entropy"):
            assert [m[name] for m in straight] == [m[name] for m in resumed], (settings[i], name)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    import ray

    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    yield
    ray.shutdown()


def test_a_group_of_ranks_trains_publishes_and_resumes(
    ray_cluster: None, model: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    from trainer.group import TrainerGroup
    from trainer.publish import read_marker

    config = TrainerConfig(lr=1e-3, zero_stage=2, world_size=2, steps_per_round=2)
    batch = random_batch()
    with TrainerGroup(config, model) as group:
        assert group.layout.startswith("padded: attention 'sdpa'")
        behaviour = group.behaviour_logprobs(batch)
        assert (behaviour[~batch.loss_mask] == 0).all()
        batch = replace(batch, behaviour=behaviour)
        first = group.train(batch)
        # On policy: the ratio is 1, the mean advantage of equal-length trajectories 0.
        assert first[0]["max_abs_dlogp"] < 1e-5
        assert first[0]["clip_fraction"] == 0
        assert first[1]["abs_dlogp"] > 1e-3
        group.save_checkpoint(tmp_path / "0001", {"policy_version": 1})
        weights = tmp_path / "policy" / "model.safetensors"
        fingerprint = group.publish(weights)
        assert read_marker(weights)["fingerprint"] == fingerprint
        group.export_hf(tmp_path / "hf")
        probe = [[5, 6, 7, 8], [9, 10, 11]]
        scores = group.score(probe)
        second = group.train(batch)
        assert group.publish(weights) != fingerprint
        assert group.load_checkpoint(tmp_path / "0001") == {"policy_version": 1}
        assert group.publish(weights) == fingerprint
        assert [m["loss"] for m in group.train(batch)] == [m["loss"] for m in second]

    import torch

    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    for ids, found in zip(probe, scores, strict=True):
        logits = exported(torch.tensor([ids])).logits[0, :-1]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        np.testing.assert_allclose(found, expected.detach().numpy(), atol=1e-5)

    damaged = next((tmp_path / "0001" / "state").iterdir())
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(bytes(data))
    with (
        TrainerGroup(config, model) as group,
        pytest.raises(CheckpointError, match=damaged.name),
    ):
        group.load_checkpoint(tmp_path / "0001")


def test_a_rank_that_dies_is_named(ray_cluster: None, model: Path) -> None:
    from trainer.group import TrainerGroup

    group = TrainerGroup(TrainerConfig(zero_stage=2, world_size=2), model)
    os.kill(group.info[1]["pid"], signal.SIGKILL)
    with pytest.raises(TrainerError, match="rank 1 of 2 died") as caught:
        group.train(random_batch())
    assert caught.value.rank == 1
    with pytest.raises(TrainerError, match="is shut down"):
        group.train(random_batch())
    group.shutdown()


def test_a_model_path_that_is_no_model_is_refused_before_a_rank_starts(tmp_path: Path) -> None:
    from trainer.group import TrainerGroup

    with pytest.raises(TrainerError, match=r"holds no config\.json"):
        TrainerGroup(TrainerConfig(), tmp_path)
