"""coevo's engine actor against vLLM's own `LLM.generate` on the same requests, on one GPU.

Prompts share their first half, as the turns of an agent do. Requests are given all at once (one
call) and one call each, as `continuous` scheduling sends them; the difference is what Ray costs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable

from gpu_common import SIZES, device_name, model_directory, parser

from rollout.policy.base import Request, Sampling
from rollout.policy.config import VLLMEngineConfig
from rollout.policy.vllm import VLLMEngine


def requests(options: argparse.Namespace) -> list[Request]:
    import numpy as np

    rng = np.random.default_rng(0)
    vocabulary = SIZES[options.size][-1]
    common = rng.integers(10, vocabulary, options.prompt // 2).tolist()
    return [
        Request(
            tuple(common + rng.integers(10, vocabulary, options.prompt // 2).tolist()),
            Sampling(max_tokens=options.new_tokens, seed=number),
            trajectory=str(number),
        )
        for number in range(options.requests)
    ]


def settings(options: argparse.Namespace, model: str) -> VLLMEngineConfig:
    return VLLMEngineConfig(
        model=model, device="cuda", dtype="bfloat16", enforce_eager=False, batching="continuous",
        max_model_len=options.prompt + options.new_tokens, max_num_seqs=options.requests,
        kv_cache_bytes=options.kv_gib << 30,
    )  # fmt: skip


async def actor(options: argparse.Namespace, model: str) -> dict[str, float]:
    """Sampled tokens a second, by how the requests are given."""
    import ray

    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    engine = await VLLMEngine.start(settings(options, model))
    made = requests(options)

    async def one_call() -> int:
        return sum(len(s.token_ids) for s in await engine.generate(made))

    async def a_call_each() -> int:
        found = await asyncio.gather(*(engine.generate([request]) for request in made))
        return sum(len(samples[0].token_ids) for samples in found)

    rates = {}
    ways: dict[str, Callable[[], Awaitable[int]]] = {
        "actor, one call": one_call,
        "actor, a call a request": a_call_each,
    }
    for name, way in ways.items():
        await way()
        began = time.perf_counter()
        tokens = await way()
        rates[name] = tokens / (time.perf_counter() - began)
    await engine.shutdown()
    ray.shutdown()
    return rates


def bare(options: argparse.Namespace, model: str) -> float:
    """Sampled tokens a second of vLLM's own class with the same settings."""
    config = settings(options, model)
    os.environ.update(config.env())
    from vllm import LLM

    from rollout.policy.compat import sampling_params

    llm = LLM(
        model=model, dtype=config.dtype, max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs, kv_cache_memory_bytes=config.kv_cache_bytes,
        skip_tokenizer_init=True, enable_prefix_caching=True, disable_log_stats=True,
    )  # fmt: skip
    made = requests(options)
    prompts = [{"prompt_token_ids": list(request.prompt_ids)} for request in made]
    params = [sampling_params(request.sampling) for request in made]
    llm.generate(prompts, params, use_tqdm=False)
    began = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    return tokens / (time.perf_counter() - began)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--requests", type=int, default=256)
    made.add_argument("--prompt", type=int, default=1024, help="tokens")
    made.add_argument("--new-tokens", type=int, default=128)
    made.add_argument("--kv-gib", type=int, default=8)
    options = made.parse_args()
    config = settings(options, "MODEL")
    if options.dry_run:
        print(f"would serve a Qwen3 of {options.size} as {config!r}")
        return
    print(device_name())
    with model_directory(options.size) as model:
        rates = asyncio.run(actor(options, str(model)))
        alone = bare(options, str(model))
    print(f"vLLM's LLM.generate: {alone:.0f} sampled tokens/s")
    for name, rate in rates.items():
        print(f"{name}: {rate:.0f} sampled tokens/s, ratio {rate / alone:.2f}")


if __name__ == "__main__":
    main()
