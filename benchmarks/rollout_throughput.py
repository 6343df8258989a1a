"""Rollout tokens a second of the whole stack against the bare engine fed the same prompts.

    python benchmarks/rollout_throughput.py [--hidden 96] [--layers 2] [--episodes 128]

The stack: Ray workers, sandboxed harness processes, environment, token capture, vLLM. Its calls are
read back from the captured segments and given to the same engine again, turn by turn as an ideal
driver would: the k-th call of every episode in one batch, nothing between. Both run in turn in one
process tree on one engine.

Two ratios are printed. That of the rates is by the clock: on CPU the engine and the workers share
the cores, so whatever else runs there counts. That of CPU time is what the bare engine takes over
what the stack takes in all its processes: it says how much of the work is the model's, and rises
with the size of the model, whose parameters are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import ray

from harness.bundle import dump, load
from rollout.config import EnvironmentConfig, RolloutConfig
from rollout.envs import make_env
from rollout.policy.base import Request, Sampling
from rollout.policy.config import VLLMEngineConfig
from rollout.policy.vllm import VLLMEngine
from rollout.pool import RolloutPool
from rollout.spec import EpisodeSpec, derive_seed
from rollout.trajectory import Trajectory

MAX_NEW = 12


def save_model(directory: str, hidden: int, layers: int) -> int:
    """A random Qwen3 with a small tokenizer of the household's words; its parameters."""
    from trainer.warmstart import make_model, make_tokenizer
    from trainer.warmstart_config import ArchitectureConfig

    texts = [
        "go to shelf 1",
        "take apple 1 from shelf 1",
        "options:",
        "task: put some apple in fridge",
    ]
    tokenizer = make_tokenizer(texts, 700)
    shape = ArchitectureConfig(
        family="qwen3", hidden=hidden, layers=layers, heads=max(1, hidden // 64),
        kv_heads=max(1, hidden // 64), intermediate=3 * hidden, vocab=700, max_positions=2048,
    )  # fmt: skip
    model = make_model(shape, tokenizer, 0)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return int(model.num_parameters())


def calls(trajectories: Sequence[Trajectory], temperature: float) -> list[list[Request]]:
    """The requests of the trajectories, by turn: element k has the k-th of each that has one."""
    turns: list[list[Request]] = []
    for trajectory in trajectories:
        number = 0
        for segment in trajectory.segments:
            edges = np.flatnonzero(np.diff(segment.loss_mask.astype(np.int8), prepend=0, append=0))
            for begin in edges[::2].tolist():
                sampling = Sampling(
                    temperature=temperature, max_tokens=MAX_NEW,
                    seed=derive_seed(trajectory.seed, number), stop_token_ids=(STOP,),
                )  # fmt: skip
                if number == len(turns):
                    turns.append([])
                turns[number].append(Request(tuple(segment.token_ids[:begin].tolist()), sampling))
                number += 1
    return turns


STOP = 1  # <|end|> of the tokenizer above


@dataclass(frozen=True)
class Cpu:
    """CPU seconds so far: the engine's process, the workers' own, their harness processes."""

    engine: float
    workers: float
    harnesses: float

    @property
    def total(self) -> float:
        return self.engine + self.workers + self.harnesses

    @classmethod
    def now(cls, engine: int, workers: Sequence[int]) -> Cpu:
        below = [child for pid in workers for child in psutil.Process(pid).children(recursive=True)]
        return cls(
            _cpu([psutil.Process(engine)], False),
            _cpu([psutil.Process(pid) for pid in workers], False),
            _cpu(below, True),
        )

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(
            self.engine - other.engine,
            self.workers - other.workers,
            self.harnesses - other.harnesses,
        )


def _cpu(processes: Sequence[psutil.Process], ended: bool) -> float:
    """ended: with that of their children that have ended."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
        total += times.children_user + times.children_system if ended else 0.0
    return total


async def measure(options: argparse.Namespace, model: str) -> None:
    per_worker = options.episodes // options.workers
    environment = EnvironmentConfig(
        name="household",
        options={"max_receptacles": 4, "max_steps": 14, "counts": {"evolve": options.episodes}},
    )
    config = RolloutConfig(
        workers=options.workers, concurrency=per_worker, scheduling=options.scheduling,
        max_new_tokens=MAX_NEW, max_context=2048 - MAX_NEW,
    )  # fmt: skip
    engine_config = VLLMEngineConfig(
        model=model, max_model_len=2048, kv_cache_bytes=options.kv_mib << 20,
        batching=options.batching, max_num_seqs=options.episodes, device=options.device,
        dtype="float32" if options.device == "cpu" else "bfloat16",
        enforce_eager=options.device == "cpu",
    )  # fmt: skip
    bundle = load("configs/harness/household")
    tasks = make_env(environment.name, **environment.options).tasks("evolve")
    with tempfile.TemporaryDirectory() as bundles:
        dump(bundle, Path(bundles) / bundle.id)
        engine = await VLLMEngine.start(engine_config, num_cpus=0.5)
        pool = RolloutPool(environment, config, model, engine, num_cpus=0.25)
        print(f"harness isolation: {await pool.start()}")
        engine_pid = (await engine.health()).pid
        workers = [
            p.pid for p in psutil.Process().children(recursive=True)
            if any("RolloutWorker" in part for part in p.cmdline())
        ]  # fmt: skip

        def specs(seed: int) -> list[EpisodeSpec]:
            return [
                EpisodeSpec(
                    f"{seed}/{t.id}", t, bundle.id, "incumbent", 0, 0, derive_seed(seed, t.id)
                )
                for t in tasks
            ]

        await pool.run(specs(0)[: 2 * options.workers], Path(bundles), "off")  # caches, imports
        ratios, shares = [], []
        for number in range(1, options.repeats + 1):
            before = Cpu.now(engine_pid, workers)
            began = time.perf_counter()
            results = await pool.run(specs(number), Path(bundles), options.trace)
            stack_s = time.perf_counter() - began
            spent = Cpu.now(engine_pid, workers) - before
            trajectories = [r.trajectory for r in results]
            turns = calls(trajectories, config.temperature)
            prompt = sum(t.cost.prompt_tokens for t in trajectories)
            sampled = sum(t.cost.sampled_tokens for t in trajectories)
            asked = sum(t.cost.model_calls for t in trajectories)
            await engine.update(f"{model}/model.safetensors", number, await engine.fingerprint())
            before = Cpu.now(engine_pid, workers)
            began = time.perf_counter()
            bare = 0
            for turn in turns:
                bare += sum(len(s.token_ids) for s in await engine.generate(turn))
            bare_s = time.perf_counter() - began
            alone = Cpu.now(engine_pid, workers) - before
            # In a batch that others join, the last digits differ, and so do samples.
            if sum(map(len, turns)) != asked or (options.batching == "serial" and bare != sampled):
                raise SystemExit(f"the engine was asked {asked} times for {sampled} tokens by the stack, "
                                 f"{sum(map(len, turns))} times for {bare} alone")  # fmt: skip
            await engine.update(f"{model}/model.safetensors", number, await engine.fingerprint())
            ratios.append((sampled / stack_s) / (bare / bare_s))
            shares.append(alone.engine / spent.total)
            print(
                f"{len(results)} episodes, {asked} calls, {prompt} prompt and {sampled} sampled tokens: "
                f"stack {sampled / stack_s:.0f} sampled tokens/s in {stack_s:.2f} s, engine alone "
                f"{bare / bare_s:.0f} in {bare_s:.2f} s, ratio {ratios[-1]:.2f}; CPU in the stack: "
                f"engine {spent.engine:.2f} s, workers {spent.workers:.2f} s, harness processes "
                f"{spent.harnesses:.2f} s; engine alone {alone.engine:.2f} s, ratio {shares[-1]:.2f}",
                flush=True,
            )
        print(
            f"{options.parameters / 1e6:.2f}M parameters, {options.device}, {options.scheduling} "
            f"scheduling, {options.batching} batching; medians of {len(ratios)}: ratio of the rates "
            f"{statistics.median(ratios):.2f}, of CPU time {statistics.median(shares):.2f}"
        )
        await pool.close()
        await engine.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--scheduling", choices=("lockstep", "continuous"), default="lockstep")
    parser.add_argument("--batching", choices=("serial", "continuous"), default="serial")
    parser.add_argument("--trace", choices=("off", "agent", "full"), default="full")
    parser.add_argument("--kv-mib", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dry-run", action="store_true", help="check the options")
    options = parser.parse_args()
    if options.dry_run:
        print(f"would measure with {vars(options)}")
        return
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    cpus = max(4, os.cpu_count() or 1)
    ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    if options.device == "cuda":
        import torch

        print(torch.cuda.get_device_name(0))
    with tempfile.TemporaryDirectory() as model:
        options.parameters = save_model(model, options.hidden, options.layers)
        asyncio.run(measure(options, model))
    ray.shutdown()


if __name__ == "__main__":
    main()
