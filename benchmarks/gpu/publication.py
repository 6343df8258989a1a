"""Seconds from trained weights on a GPU to an engine that serves them: by a file, and by NCCL.

The engine is a run's own, in a Ray actor. By file, the weights lie on the engine's GPU, as when it is
shared, and the load is compared with a plain read of the same file. NCCL takes no two processes of
one GPU, so a trainer rank sends from a second one; with one GPU it is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from gpu_common import device_name, model_directory, parser

from rollout.policy.config import VLLMEngineConfig
from rollout.policy.vllm import VLLMEngine
from trainer.config import TrainerConfig
from trainer.group import TrainerGroup


def settings(model: str) -> tuple[VLLMEngineConfig, TrainerConfig]:
    return (
        VLLMEngineConfig(
            model=model, device="cuda", dtype="bfloat16", max_model_len=1024,
            kv_cache_bytes=1 << 30, max_num_seqs=16,
        ),
        TrainerConfig(device="cuda", dtype="bf16", zero_stage=1),
    )  # fmt: skip


async def by_file(engine: VLLMEngine, model: Path, repeats: int) -> None:
    from safetensors.torch import load_file

    from trainer.publish import publish

    weights = load_file(model / "model.safetensors", device="cuda")
    for version in range(1, repeats + 1):
        path = model / f"version-{version}.safetensors"
        began = time.perf_counter()
        fingerprint = publish(sorted((n, w.cpu()) for n, w in weights.items()), path)
        written = time.perf_counter()
        await engine.update(str(path), version, fingerprint)
        loaded = time.perf_counter()
        size = len(path.read_bytes()) / 1e9
        read_s = time.perf_counter() - loaded
        print(
            f"file: {size:.2f} GB, written in {written - began:.2f} s, loaded in "
            f"{loaded - written:.2f} s ({(loaded - written) / read_s:.1f} times a plain read)"
        )


async def by_nccl(engine: VLLMEngine, group: TrainerGroup, version: int, path: Path) -> None:
    # In a run the fingerprint is known before: the file is written, too, for a resumed run.
    fingerprint = await asyncio.to_thread(group.publish, path)
    began = time.perf_counter()
    plan = await asyncio.to_thread(group.prepare_broadcast, 1)
    sending = asyncio.create_task(asyncio.to_thread(group.broadcast, plan))
    await engine.update(plan, version, fingerprint)
    await sending
    seconds = time.perf_counter() - began
    size = sum(bucket.size for bucket in plan.buckets) / 1e9
    print(f"NCCL: {size:.2f} GB in {seconds:.2f} s, {size / seconds:.2f} GB/s")


async def measure(options: argparse.Namespace, model: Path) -> None:
    import ray
    import torch

    engine_config, trainer_config = settings(str(model))
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    engine = await VLLMEngine.start(engine_config)
    await by_file(engine, model, options.repeats)
    if torch.cuda.device_count() < 2:
        print("NCCL: not measured, it needs 2 GPUs")
    else:
        with TrainerGroup(trainer_config, model) as group:
            for version in range(options.repeats + 1, 2 * options.repeats + 1):
                await by_nccl(engine, group, version, model / f"version-{version}.safetensors")
    await engine.shutdown()
    ray.shutdown()


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--repeats", type=int, default=3)
    options = made.parse_args()
    engine, trainer = settings("MODEL")
    if options.dry_run:
        print(f"would publish a Qwen3 of {options.size} from {trainer.device} to {engine!r}")
        return
    print(device_name())
    with model_directory(options.size) as model:
        asyncio.run(measure(options, model))


if __name__ == "__main__":
    main()
