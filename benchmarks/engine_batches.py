"""vLLM on CPU, in-process LLMEngine beside AsyncLLM: requests a second and bitwise equality.

    python benchmarks/engine_batches.py [--batch 128] [--rounds 8]

A tiny random Qwen3, prompts of about 100 tokens with a common prefix, two new tokens each. Engines
are built from the same `rollout.policy.compat.engine_args`, so the difference is theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

from rollout.policy.base import Request, Sampling
from rollout.policy.config import VLLMEngineConfig

Answer = tuple[tuple[int, ...], tuple[float, ...]]


def save_tiny_model(directory: str) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).float().save_pretrained(directory)


def make_requests(count: int) -> list[Request]:
    import numpy as np

    rng = np.random.default_rng(0)
    common = rng.integers(10, 500, 50).tolist()
    return [
        Request(
            tuple(common + rng.integers(10, 500, 30 + int(i) % 40).tolist()),
            Sampling(max_tokens=2, seed=i),
        )
        for i in range(count)
    ]


def report(
    name: str, batch: int, rounds: int, run: Callable[[], Any], cpu: Callable[[], float]
) -> None:
    run()
    wall, spent = time.perf_counter(), cpu()
    for _ in range(rounds):
        run()
    wall, spent = time.perf_counter() - wall, cpu() - spent
    count = rounds * batch
    print(f"{name:34s} {count / wall:7.0f} requests/s {count / spent:7.0f} requests/CPU-s")


def sync_engine(config: VLLMEngineConfig, requests: list[Request], rounds: int) -> list[Answer]:
    from rollout.policy.compat import VLLMCore
    from rollout.policy.engine_loop import EngineLoop

    core = VLLMCore(config)
    loop: EngineLoop[Any, Any] = EngineLoop(core)

    def answers(batch: list[Request]) -> list[Answer]:
        return [(s.token_ids, s.logprobs) for s in loop.submit(batch).result()]

    report("LLMEngine", len(requests), rounds, lambda: answers(requests), time.process_time)
    together = answers(requests)
    alone = [answers([request])[0] for request in requests[:16]]
    print(f"  alone == in a batch, bit for bit: {alone == together[:16]}")
    loop.close()
    core.close()
    return together


async def async_engine(
    config: VLLMEngineConfig, requests: list[Request], rounds: int
) -> list[Answer]:
    import psutil
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from rollout.policy.compat import engine_args, sampling_params

    arguments = vars(engine_args(config)) | {"worker_extension_cls": ""}
    arguments["weight_transfer_config"] = None
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    number = 0

    async def one(request: Request) -> Answer:
        nonlocal number
        number += 1
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        stream = engine.generate(prompt, sampling_params(request.sampling), request_id=str(number))
        outputs: list[Any] = [output async for output in stream]
        done = outputs[-1].outputs[0]
        ids = tuple(done.token_ids)
        return ids, tuple(e[i].logprob for e, i in zip(done.logprobs, ids, strict=True))

    async def answers() -> list[Answer]:
        return await asyncio.gather(*(one(request) for request in requests))

    await answers()
    wall = time.perf_counter()
    spent = sum(sum(p.cpu_times()[:2]) for p in processes)
    for _ in range(rounds):
        await answers()
    wall = time.perf_counter() - wall
    spent = sum(sum(p.cpu_times()[:2]) for p in processes) - spent
    count = rounds * len(requests)
    print(f"{'AsyncLLM':34s} {count / wall:7.0f} requests/s {count / spent:7.0f} requests/CPU-s")
    out = await answers()
    engine.shutdown()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        config = VLLMEngineConfig(model=directory, max_model_len=512, kv_cache_bytes=128 << 20)
        os.environ.update(config.env())
        save_tiny_model(directory)
        requests = make_requests(options.batch)
        together = sync_engine(config, requests, options.rounds)
        served = asyncio.run(async_engine(config, requests, options.rounds))
        print(f"  both engines, bit for bit: {together == served}")


if __name__ == "__main__":
    main()
