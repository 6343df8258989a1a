"""Engines and trainer on the same GPUs: Ray places both, the engine sleeps, and publication wakes it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("vllm")

import ray
from tiny_trainer import save_tiny_model

from coevo.colocation import RANK_GPU, ColocationError, SharedGPUs
from coevo.config import RunConfig, load_config
from rollout.policy.base import EngineError, Request, Sampling
from rollout.policy.config import VLLMEngineConfig
from rollout.policy.vllm import VLLMEngine
from rollout.policy.weights import checkpoint_files, fingerprint_files

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray that believes in four GPUs: it books them, and nothing here touches one."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(num_cpus=8, num_gpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def config(replicas: int, tensor_parallel: int, ranks: int) -> RunConfig:
    return load_config(
        "configs/models/qwen3_0.6b.yaml",
        [
            f"policy.engine.replicas={replicas}",
            f"policy.engine.tensor_parallel={tensor_parallel}",
            f"trainer.world_size={ranks}",
        ],
    )


@pytest.mark.parametrize(("replicas", "size"), [(4, 1), (2, 2)])
def test_each_gpu_is_booked_by_one_engine_worker_and_one_rank(
    cluster: None, replicas: int, size: int
) -> None:
    class Which:  # here, so that Ray carries it to the actors by value
        def gpus(self) -> list[int]:
            return ray.get_gpu_ids()

    shared = SharedGPUs.reserve(config(replicas, size, 4), 30)
    try:
        actor = ray.remote(Which)
        ranks = [
            actor.options(
                num_gpus=RANK_GPU,
                num_cpus=1,
                scheduling_strategy=shared.strategy(index),
            ).remote()
            for index in range(4)
        ]
        places = shared.engines(replicas, size)
        engines = [actor.options(num_cpus=0.5, **place.ray_options).remote() for place in places]
        of_ranks = [gpus for (gpus,) in ray.get([r.gpus.remote() for r in ranks])]
        assert sorted(of_ranks) == [0, 1, 2, 3]
        seen = ray.get([e.gpus.remote() for e in engines])
        if size == 1:
            assert [gpus for (gpus,) in seen] == of_ranks
        else:  # vLLM's own workers take the GPUs of these bundles
            assert seen == [[], []]
            assert [place.bundles for place in places] == [(0, 1), (2, 3)]
    finally:
        shared.release()


def test_a_cluster_without_the_gpus_is_named(cluster: None) -> None:
    with pytest.raises(ColocationError, match=r"needs 8 GPUs .*it has 4 GPUs and 8 CPUs"):
        SharedGPUs.reserve(config(8, 1, 8), 1)


def test_a_sleeping_engine_refuses_requests_until_weights_are_published(
    cluster: None, tmp_path: Path
) -> None:
    model = save_tiny_model(tmp_path / "model")
    fingerprint = fingerprint_files(checkpoint_files(model))
    settings = VLLMEngineConfig(
        model=str(model), max_model_len=128, kv_cache_bytes=32 << 20, sleeps=True
    )
    request = Request((5, 6, 7), Sampling(seed=1, max_tokens=4))

    async def turns() -> None:
        engine = await VLLMEngine.start(settings)
        try:
            before = await engine.generate([request])
            await engine.sleep()
            with pytest.raises(EngineError, match="publish weights to wake it"):
                await engine.generate([request])
            with pytest.raises(EngineError, match="fingerprint"):
                await engine.update(str(model), 1, "0" * 64)
            with pytest.raises(EngineError, match="publish weights to wake it"):
                await engine.score([(5, 6, 7)])
            await engine.update(str(model), 1, fingerprint)
            after = await engine.generate([request])
            assert after[0].version == 1
            assert after[0].token_ids == before[0].token_ids
            assert after[0].logprobs == before[0].logprobs
        finally:
            await engine.shutdown()

    asyncio.run(turns())
