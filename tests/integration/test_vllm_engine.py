"""The real vLLM engine in a real Ray actor, against transformers as the reference."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import numpy as np
import ray
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from rollout.policy.base import ContextOverflow, EngineError, Request, Sample, Sampling
from rollout.policy.config import VLLMEngineConfig
from rollout.policy.vllm import VLLMEngine
from rollout.policy.weights import fingerprint_file

pytestmark = pytest.mark.slow

VOCAB = 320
STOP = 7


def tiny_model(directory: Path, *, tied: bool, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        eos_token_id=STOP,
        bos_token_id=None,
        pad_token_id=0,
    )
    model = Qwen3ForCausalLM(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # far from uniform, so that a wrong weight shows
                parameter.mul_(4.0)
    model.config.dtype = torch.float32
    model.save_pretrained(directory)
    return model


def reference(model: Qwen3ForCausalLM, ids: list[int], temperature: float = 1.0) -> list[float]:
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].float() / temperature
    picked = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])
    return picked[:, 0].tolist()


def prompts(count: int, length: int = 90) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(0)
    common = rng.integers(10, VOCAB, length // 2)
    return [
        tuple(int(i) for i in (*common, *rng.integers(10, VOCAB, length // 2 + k % 9)))
        for k in range(count)
    ]


def requests(count: int, **sampling: Any) -> list[Request]:
    return [
        Request(ids, Sampling(seed=100 + i, **({"max_tokens": 12} | sampling)))
        for i, ids in enumerate(prompts(count))
    ]


def config_of(directory: Path, **changes: Any) -> VLLMEngineConfig:
    return VLLMEngineConfig(
        model=str(directory), max_model_len=256, kv_cache_bytes=64 << 20, **changes
    )


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Served:
    """A model, its directory and an engine that serves it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, root: Path, *, tied: bool) -> None:
        self.loop = loop
        self.root = root
        self.tied = tied
        self.model = tiny_model(root / "m0", tied=tied, seed=1)
        self.engine = self.run(VLLMEngine.start(config_of(root / "m0"), version=3))

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def generate(self, batch: list[Request]) -> list[Sample]:
        return self.run(self.engine.generate(batch))


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def served(
    request: pytest.FixtureRequest,
    loop: asyncio.AbstractEventLoop,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    served = Served(loop, tmp_path_factory.mktemp("vllm"), tied=request.param)
    yield served
    served.run(served.engine.shutdown())


def test_the_first_fingerprint_is_that_of_the_checkpoint(served: Served) -> None:
    expected = fingerprint_file(served.root / "m0" / "model.safetensors")
    assert served.run(served.engine.fingerprint()) == expected


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_the_tempered_distribution(
    served: Served, temperature: float
) -> None:
    batch = requests(8, temperature=temperature)
    for request, sample in zip(batch, served.generate(batch), strict=True):
        ids = [*request.prompt_ids, *sample.token_ids]
        expected = reference(served.model, ids, temperature)[len(request.prompt_ids) - 1 :]
        assert np.allclose(sample.logprobs, expected, atol=1e-4)
        assert sample.version == 3
        assert len(sample.token_ids) == len(sample.logprobs)


def test_a_request_gets_the_same_bits_alone_in_any_batch_and_from_a_warm_cache(
    served: Served,
) -> None:
    batch = requests(64)
    together = served.generate(batch)
    alone = [served.generate([request])[0] for request in batch[:6]]
    by_eight = [s for i in range(0, 64, 8) for s in served.generate(batch[i : i + 8])]

    def bits(samples: list[Sample]) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        return [(s.token_ids, s.logprobs) for s in samples]

    assert bits(by_eight) == bits(together)
    assert bits(alone) == bits(together[:6])
    assert max(s.cached_tokens for s in alone) > 0


def test_concurrent_calls_are_answered_in_order_and_each_with_its_own(served: Served) -> None:
    batch = requests(12)

    async def both() -> list[list[Sample]]:
        return await asyncio.gather(
            *(served.engine.generate(batch[i : i + 4]) for i in range(0, 12, 4))
        )

    parts = served.run(both())
    assert [s.token_ids for part in parts for s in part] == [
        s.token_ids for s in served.generate(batch)
    ]


def test_a_stop_token_ends_the_sample_and_is_part_of_it(served: Served) -> None:
    free = served.generate(requests(4))
    stop = free[0].token_ids[2]
    stopped = served.generate(requests(1, stop_token_ids=(stop,)))[0]
    end = free[0].token_ids.index(stop) + 1
    assert stopped.token_ids == free[0].token_ids[:end]
    assert stopped.finish_reason == "stop"
    assert free[0].finish_reason == "length"


def test_scores_are_log_probs_at_temperature_one(served: Served) -> None:
    sequences = [list(ids) for ids in prompts(5)]
    scores = served.run(served.engine.score(sequences))
    for ids, score in zip(sequences, scores, strict=True):
        assert np.allclose(score, reference(served.model, ids), atol=1e-4)


def test_a_prompt_without_room_is_refused_before_anything_runs(served: Served) -> None:
    with pytest.raises(ContextOverflow, match="request 0 of 1 has 256 tokens"):
        served.generate([Request(tuple([5] * 256), Sampling())])
    assert len(served.generate([Request(tuple([5] * 255), Sampling())])[0].token_ids) == 1


def test_a_token_outside_the_vocabulary_is_refused_and_the_engine_lives(served: Served) -> None:
    good = requests(2)
    with pytest.raises(ValueError, match="vocabulary"):
        served.generate([*good, Request((VOCAB + 900,), Sampling())])
    assert len(served.generate(good)) == 2


def test_published_weights_are_served_exactly_and_stamped(served: Served) -> None:
    batch = requests(6)
    served.generate(batch)  # warms the prefix cache with the old weights
    for version in (4, 5):
        new = tiny_model(served.root / f"m{version}", tied=served.tied, seed=version)
        path = served.root / f"w{version}.safetensors"
        save_file(load_file(served.root / f"m{version}" / "model.safetensors"), path)
        served.run(served.engine.update(str(path), version, fingerprint_file(path)))
        assert served.run(served.engine.fingerprint()) == fingerprint_file(path)
        for request, sample in zip(batch, served.generate(batch), strict=True):
            ids = [*request.prompt_ids, *sample.token_ids]
            expected = reference(new, ids)
            assert np.allclose(sample.logprobs, expected[len(request.prompt_ids) - 1 :], atol=1e-4)
            assert np.allclose(served.run(served.engine.score([ids]))[0], expected, atol=1e-4)
            assert sample.version == version
        served.model = new
    path = served.root / "back.safetensors"
    served.model = tiny_model(served.root / "m0", tied=served.tied, seed=1)
    save_file(load_file(served.root / "m0" / "model.safetensors"), path)
    served.run(served.engine.update(str(path), 3, fingerprint_file(path)))


def test_broadcast_weights_are_served_exactly_and_stamped(served: Served, tmp_path: Path) -> None:
    from rollout.policy.broadcast import Broadcast, plan_buckets
    from rollout.policy.collective import Sender

    before = load_file(served.root / "m0" / "model.safetensors")
    changed = {name: tensor * 1.01 for name, tensor in sorted(before.items())}
    save_file(changed, str(tmp_path / "expected.safetensors"))
    fingerprint = fingerprint_file(tmp_path / "expected.safetensors")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    sizes = ((n, "float32", tuple(t.shape), t.numel() * 4) for n, t in changed.items())
    plan = Broadcast("127.0.0.1", port, 1, "gloo", 60.0, plan_buckets(sizes, 1 << 17))
    assert len(plan.buckets) > 2

    def send() -> str:
        sender = Sender(plan, torch.device("cpu"))
        for name, tensor in changed.items():
            sender.add(name, tensor)
        return sender.finish()

    async def publish() -> str:
        sending = asyncio.create_task(asyncio.to_thread(send))
        await served.engine.update(plan, 40, fingerprint)
        return await sending

    assert served.run(publish()) == fingerprint
    assert served.run(served.engine.fingerprint()) == fingerprint
    ids = list(prompts(1)[0])
    received = served.run(served.engine.score([ids]))[0]
    served.run(served.engine.update(str(tmp_path / "expected.safetensors"), 41, fingerprint))
    assert received == served.run(served.engine.score([ids]))[0]
    original = str(served.root / "m0" / "model.safetensors")
    served.run(served.engine.update(original, 42, fingerprint_file(original)))


def test_weights_with_another_fingerprint_are_refused_and_the_old_ones_stay(
    served: Served,
) -> None:
    before = served.generate(requests(2))
    other = tiny_model(served.root / "other", tied=served.tied, seed=9)
    path = served.root / "other.safetensors"
    state = {name: tensor.contiguous() for name, tensor in other.state_dict().items()}
    if served.tied:
        del state["lm_head.weight"]
    save_file(state, path)
    with pytest.raises(EngineError, match="fingerprint"):
        served.run(served.engine.update(str(path), 9, "0" * 64))
    state.pop("model.norm.weight")
    save_file(state, path)
    with pytest.raises(EngineError, match=r"lacks 1 of .*model\.norm\.weight"):
        served.run(served.engine.update(str(path), 9, fingerprint_file(path)))
    with pytest.raises(EngineError, match="cannot be read"):
        served.run(served.engine.update(str(served.root / "none"), 9, ""))
    after = served.generate(requests(2))
    assert [s.logprobs for s in after] == [s.logprobs for s in before]


def test_health_counts_what_was_served(served: Served) -> None:
    before = served.run(served.engine.health())
    served.generate(requests(3))
    after = served.run(served.engine.health())
    assert after.requests == before.requests + 3
    assert after.sampled_tokens == before.sampled_tokens + 36


def test_a_killed_engine_is_an_engine_error(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    tiny_model(tmp_path / "m", tied=True, seed=2)
    engine = loop.run_until_complete(
        VLLMEngine.start(config_of(tmp_path / "m", batching="continuous"))
    )
    os.kill(loop.run_until_complete(engine.health()).pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="died during generate"):
        loop.run_until_complete(engine.generate(requests(1)))
    loop.run_until_complete(engine.shutdown())


def test_a_missing_model_says_what_is_missing(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(EngineError, match=r"could not serve .*empty"):
        loop.run_until_complete(VLLMEngine.start(config_of(tmp_path / "empty")))


def test_without_vllm_the_error_says_how_to_install_it(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    """A package named vllm that cannot be imported stands in for a missing one."""
    tiny_model(tmp_path / "m", tied=True, seed=2)
    (tmp_path / "shadow" / "vllm").mkdir(parents=True)
    (tmp_path / "shadow" / "vllm" / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'vllm'\")\n"
    )
    config = config_of(tmp_path / "m")
    path = os.pathsep.join([str(tmp_path / "shadow"), *filter(None, sys.path)])
    with pytest.raises(EngineError, match=r"coevo\[cpu\]"):
        loop.run_until_complete(
            VLLMEngine.start(config, runtime_env={"env_vars": config.env() | {"PYTHONPATH": path}})
        )
