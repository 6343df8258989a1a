"""The vLLM engine on two model families: parity with the trainer's log-probs, adapters, replicas."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import numpy as np
import ray
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rollout.policy.base import EngineDied, EngineError, Request, Sample, Sampling
from rollout.policy.config import ServedLoRAConfig, VLLMEngineConfig
from rollout.policy.replicas import ReplicaSet, start_replicas
from rollout.policy.vllm import VLLMEngine
from rollout.policy.weights import fingerprint_file
from trainer.logprobs import TokenScorer, sequences_batch
from trainer.packing import collate, input_lengths

pytestmark = pytest.mark.slow

VOCAB = 320
FAMILIES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, True),
    "llama": (LlamaConfig, LlamaForCausalLM, False),
}


def tiny_model(family: str, directory: Path, seed: int = 1) -> Any:
    config, model_class, tied = FAMILIES[family]
    torch.manual_seed(seed)
    model = model_class(
        config(
            vocab_size=VOCAB,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=512,
            tie_word_embeddings=tied,
            initializer_range=0.1,
            eos_token_id=7,
            bos_token_id=None,
            pad_token_id=0,
        )
    ).float()
    model.config.dtype = torch.float32
    model.save_pretrained(directory)
    return model.eval()


def requests(count: int = 6, **sampling: Any) -> list[Request]:
    rng = np.random.default_rng(0)
    return [
        Request(
            tuple(int(i) for i in rng.integers(10, VOCAB, 40 + k)),
            Sampling(seed=k, max_tokens=10, **sampling),
            trajectory=f"t{k}",
        )
        for k in range(count)
    ]


def reference(model: Any, ids: list[int]) -> list[float]:
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].float()
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


class Cluster:
    """A model a family, and what serves it: an engine with adapters, and two replicas."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.loop = asyncio.new_event_loop()
        self.models = {f: tiny_model(f, root / f) for f in FAMILIES}
        qwen3, llama = (self.config(f) for f in FAMILIES)
        lora = qwen3.model_copy(update={"lora": ServedLoRAConfig(rank=8), "batching": "continuous"})

        async def start() -> tuple[VLLMEngine, ReplicaSet]:
            return await asyncio.gather(VLLMEngine.start(lora), start_replicas(llama, 2))

        self.adapters, self.replicas = self.run(start())
        self.engines = {"qwen3": self.adapters, "llama": self.replicas}

    def config(self, family: str) -> VLLMEngineConfig:
        return VLLMEngineConfig(
            model=str(self.root / family), max_model_len=128, kv_cache_bytes=32 << 20
        )

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def close(self) -> None:
        for engine in self.engines.values():
            self.run(engine.shutdown())
        self.loop.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        made = Cluster(tmp_path_factory.mktemp("models"))
        yield made
        made.close()
    finally:
        ray.shutdown()


async def one_by_one(engine: Any, batch: list[Request]) -> list[Sample]:
    """A call a request, all at once: with continuous batching each joins the running batch."""
    return [part[0] for part in await asyncio.gather(*(engine.generate([r]) for r in batch))]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_engine_and_trainer_agree_on_what_was_sampled(
    cluster: Cluster, family: str, temperature: float
) -> None:
    batch = requests(temperature=temperature)
    samples = cluster.run(one_by_one(cluster.engines[family], batch))
    sequences = [[*r.prompt_ids, *s.token_ids] for r, s in zip(batch, samples, strict=True)]
    scored = sequences_batch(sequences, temperature)
    model = FAMILIES[family][1].from_pretrained(
        cluster.root / family, dtype=torch.float32, attn_implementation="sdpa"
    )
    micro = collate(scored, input_lengths(scored), list(range(len(batch))), "packed")
    with torch.no_grad():
        values, _ = TokenScorer(model)(model, micro, temperature, "cpu")
    ends = np.cumsum([len(s) - 1 for s in sequences])
    for end, sample in zip(ends, samples, strict=True):
        trainer = values[end - len(sample.token_ids) : end].numpy()
        assert np.abs(trainer - np.array(sample.logprobs)).max() < 1e-4


# --- adapters ---


async def both(first: Any, second: Any) -> Any:
    return await asyncio.gather(first, second)


def save_adapter(cluster: Cluster, name: str, seed: int, rank: int = 4) -> tuple[Path, Any]:
    """A random adapter in peft's format, and the model with it."""
    torch.manual_seed(seed)
    base = Qwen3ForCausalLM.from_pretrained(cluster.root / "qwen3", dtype=torch.float32)
    model = get_peft_model(
        base, LoraConfig(r=rank, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    for key, parameter in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(parameter, std=0.3)
    path = cluster.root / name
    model.save_pretrained(path)
    return path, model.eval()


def publish(cluster: Cluster, path: Path, version: int) -> str:
    fingerprint = fingerprint_file(path / "adapter_model.safetensors")
    cluster.run(cluster.adapters.update(str(path), version, fingerprint))
    return fingerprint


def check_served(cluster: Cluster, model: Any, version: int) -> None:
    batch = requests(3)
    samples = cluster.run(cluster.adapters.generate(batch))
    sequences = [[*r.prompt_ids, *s.token_ids] for r, s in zip(batch, samples, strict=True)]
    # All at once, while others are sampled: with adapters, vLLM cannot score two in one batch.
    scores, _ = cluster.run(
        both(cluster.adapters.score(sequences), cluster.adapters.generate(requests(6)))
    )
    for ids, sample, score in zip(sequences, samples, scores, strict=True):
        expected = reference(model, ids)
        assert sample.version == version
        assert np.allclose(sample.logprobs, expected[-len(sample.token_ids) :], atol=1e-4)
        assert np.allclose(score, expected, atol=1e-4)


def test_each_adapter_is_served_as_its_version_and_the_base_comes_back(cluster: Cluster) -> None:
    base = cluster.run(cluster.adapters.fingerprint())
    check_served(cluster, cluster.models["qwen3"], 0)  # warms the prefix cache
    for version in (1, 2):
        path, model = save_adapter(cluster, f"adapter{version}", version)
        fingerprint = publish(cluster, path, version)
        assert cluster.run(cluster.adapters.fingerprint()) == fingerprint
        check_served(cluster, model, version)
    weights = cluster.root / "qwen3" / "model.safetensors"
    cluster.run(cluster.adapters.update(str(weights), 0, base))
    check_served(cluster, cluster.models["qwen3"], 0)


def test_an_adapter_that_does_not_fit_is_refused_and_the_old_one_stays(cluster: Cluster) -> None:
    path, model = save_adapter(cluster, "fits", 5)
    publish(cluster, path, 5)
    wide, _ = save_adapter(cluster, "wide", 6, rank=16)
    with pytest.raises(EngineError, match=r"has rank 16, engine\.lora\.rank is 8"):
        publish(cluster, wide, 6)
    with pytest.raises(EngineError, match="fingerprint"):
        cluster.run(cluster.adapters.update(str(path), 6, "0" * 64))
    (cluster.root / "hollow").mkdir()
    with pytest.raises(EngineError, match="is no adapter configuration"):
        cluster.run(cluster.adapters.update(str(cluster.root / "hollow"), 6, ""))
    other = tiny_model("qwen3", cluster.root / "other", seed=9)
    assert other is not None
    whole = cluster.root / "other" / "model.safetensors"
    with pytest.raises(EngineError, match="publish an adapter"):
        cluster.run(cluster.adapters.update(str(whole), 6, fingerprint_file(whole)))
    check_served(cluster, model, 5)


def test_an_engine_without_adapters_refuses_one(cluster: Cluster) -> None:
    path, _ = save_adapter(cluster, "unwanted", 7)
    with pytest.raises(EngineError, match=r"replica . of 2: .*serves none"):
        cluster.run(cluster.replicas.update(str(path), 1, ""))


# --- replicas; the last test ends one ---


def bits(samples: list[Sample]) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    return [(s.token_ids, s.logprobs) for s in samples]


def test_replicas_sample_the_same_bits_and_keep_each_trajectory_s_prefix(cluster: Cluster) -> None:
    batch = requests()
    first = cluster.run(cluster.replicas.generate(batch))
    longer = [
        Request((*r.prompt_ids, *s.token_ids, 11, 12), r.sampling, r.trajectory)
        for r, s in zip(batch, first, strict=True)
    ]
    again = cluster.run(cluster.replicas.generate(longer))
    assert all(s.cached_tokens >= 32 for s in again)  # the block of 32 that its replica holds
    one = ReplicaSet(cluster.replicas._replicas[1:])
    assert bits(cluster.run(one.generate(batch))) == bits(first)


def test_an_update_reaches_every_replica_and_drops_their_caches(cluster: Cluster) -> None:
    batch = requests()
    cluster.run(cluster.replicas.generate(batch))
    model = tiny_model("llama", cluster.root / "llama1", seed=3)
    path = cluster.root / "llama1" / "model.safetensors"
    cluster.run(cluster.replicas.update(str(path), 1, fingerprint_file(path)))
    assert cluster.run(cluster.replicas.fingerprint()) == fingerprint_file(path)
    for request, sample in zip(batch, cluster.run(cluster.replicas.generate(batch)), strict=True):
        expected = reference(model, [*request.prompt_ids, *sample.token_ids])
        assert sample.version == 1
        assert np.allclose(sample.logprobs, expected[len(request.prompt_ids) - 1 :], atol=1e-4)
    assert load_file(path).keys()  # untouched by the engines


def test_a_killed_replica_is_named_and_the_other_serves_on(cluster: Cluster) -> None:
    victim = cluster.replicas._replicas[1]
    os.kill(cluster.run(victim.health()).pid, signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(EngineDied, match="replica 1 of 2"):
        cluster.run(cluster.replicas.generate(requests()))
    assert len(cluster.run(cluster.replicas.generate(requests()))) == 6
    path = cluster.root / "llama" / "model.safetensors"
    with pytest.raises(EngineError, match="replica 1 of 2"):
        cluster.run(cluster.replicas.update(str(path), 2, fingerprint_file(path)))
