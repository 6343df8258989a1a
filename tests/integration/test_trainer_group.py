"""The group of trainer ranks on real Ray, DeepSpeed and vLLM."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_trainer import random_batch, save_tiny_model

from trainer.config import TrainerConfig
from trainer.errors import CheckpointError, PublishError, TrainerError
from trainer.group import TrainerGroup

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


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

    from trainer.publish import read_marker

    config = TrainerConfig(
        lr=1e-3, zero_stage=2, world_size=2, steps_per_round=2, publish_timeout_s=60
    )
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
        assert 0 < first[1]["mfu"] < 10
        asyncio.run(check_engine(group, tmp_path / "hf", probe, scores, group.publish(weights)))

    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    for ids, found in zip(probe, scores, strict=True):
        logits = exported(torch.tensor([ids])).logits[0, :-1]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        np.testing.assert_allclose(found, expected.detach().numpy(), atol=1e-5)


async def check_engine(
    group: TrainerGroup,
    exported: Path,
    probe: list[list[int]],
    scores: list[list[float]],
    fingerprint: str,
) -> None:
    """vLLM loads the export, then receives what the trainer holds now; both score alike."""
    from rollout.policy.base import EngineError
    from rollout.policy.config import VLLMEngineConfig
    from rollout.policy.vllm import VLLMEngine

    settings = VLLMEngineConfig(
        model=str(exported), max_model_len=64, kv_cache_bytes=16 << 20, call_timeout_s=120
    )
    engine = await VLLMEngine.start(settings, num_cpus=0)
    for served, expected in zip(await engine.score(probe), scores, strict=True):
        np.testing.assert_allclose(served, expected, atol=1e-4)

    plan = await asyncio.to_thread(group.prepare_broadcast, 1)
    sending = asyncio.create_task(asyncio.to_thread(group.broadcast, plan))
    await engine.update(plan, 2, fingerprint)
    assert await sending == fingerprint
    now = await asyncio.to_thread(group.score, probe)
    for served, expected in zip(await engine.score(probe), now, strict=True):
        np.testing.assert_allclose(served, expected, atol=1e-4)
    await engine.shutdown()

    plan = replace(plan, timeout_s=2.0)
    sending = asyncio.create_task(asyncio.to_thread(group.broadcast, plan))
    with pytest.raises(EngineError):
        await engine.update(plan, 3, fingerprint)
    with pytest.raises(PublishError, match="0 of 1 receivers joined"):
        await sending


def test_a_damaged_checkpoint_and_a_rank_that_dies_are_named(
    ray_cluster: None, model: Path, tmp_path: Path
) -> None:

    group = TrainerGroup(TrainerConfig(zero_stage=2, world_size=2), model)
    group.save_checkpoint(tmp_path / "0001")
    damaged = next((tmp_path / "0001" / "state").iterdir())
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=damaged.name):
        group.load_checkpoint(tmp_path / "0001")
    os.kill(group.info[1]["pid"], signal.SIGKILL)
    with pytest.raises(TrainerError, match="rank 1 of 2 died") as caught:
        group.train(random_batch())
    assert caught.value.rank == 1
    with pytest.raises(TrainerError, match="is shut down"):
        group.train(random_batch())
    group.shutdown()


def test_a_model_path_that_is_no_model_is_refused_before_a_rank_starts(tmp_path: Path) -> None:

    with pytest.raises(TrainerError, match=r"holds no config\.json"):
        TrainerGroup(TrainerConfig(), tmp_path)
