"""Seconds and memory of an engine that sleeps while a trainer has its GPU, and wakes with new weights.

What `resources.placement: colocated` does once a round: sleep, train, publish, wake. The memory is
the GPU's, of all processes on it. What the engine answers afterwards must be what it answered before,
since the weights that wake it are the same.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from gpu_common import device_name, model_directory, parser

from rollout.policy.base import Request, Sampling
from rollout.policy.config import VLLMEngineConfig
from rollout.policy.vllm import VLLMEngine


def settings(model: str, kv_gib: int) -> VLLMEngineConfig:
    return VLLMEngineConfig(
        model=model, device="cuda", dtype="bfloat16", max_model_len=1024, max_num_seqs=16,
        kv_cache_bytes=kv_gib << 30, sleeps=True,
    )  # fmt: skip


def used_gb() -> float:
    import torch

    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e9


async def measure(model: Path, kv_gib: int, repeats: int) -> None:
    import ray

    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    empty = used_gb()
    engine = await VLLMEngine.start(settings(str(model), kv_gib))
    asked = [Request(tuple(range(10, 74)), Sampling(temperature=0.0, max_tokens=32))]
    before = (await engine.generate(asked))[0].token_ids
    fingerprint = await engine.fingerprint()
    awake = used_gb() - empty
    for version in range(1, repeats + 1):
        began = time.perf_counter()
        await engine.sleep()
        slept = time.perf_counter()
        asleep = used_gb() - empty
        await engine.update(str(model / "model.safetensors"), version, fingerprint)
        woken = time.perf_counter()
        after = (await engine.generate(asked))[0].token_ids
        print(
            f"sleep {slept - began:.2f} s, wake with weights {woken - slept:.2f} s; memory "
            f"{awake:.2f} GB awake, {asleep:.2f} GB asleep, ratio {asleep / awake:.2f}; same "
            f"answer: {after == before}"
        )
    await engine.shutdown()
    ray.shutdown()


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--kv-gib", type=int, default=8)
    made.add_argument("--repeats", type=int, default=3)
    options = made.parse_args()
    config = settings("MODEL", options.kv_gib)
    if options.dry_run:
        print(f"would put a Qwen3 of {options.size} to sleep and wake it: {config!r}")
        return
    print(device_name())
    with model_directory(options.size) as model:
        asyncio.run(measure(model, options.kv_gib, options.repeats))


if __name__ == "__main__":
    main()
