"""Trained tokens a second, and memory, against TRL's GRPOTrainer on the same trajectories.

Run it with `python benchmarks/trainer_vs_trl.py`. Each side runs in a process of its own, on one
device of the same number of threads, with the same model, optimiser and number of steps; every step
takes all trajectories. Nothing is generated: TRL's `_generate_and_score_completions` returns the
prepared trajectories (prompt, completion, mask of sampled tokens, log-probs of the sampler,
advantages), so that what is timed is `GRPOTrainer.train()` from the beginning of its second optimiser
step to the end of the last, and `TrainerEngine.train_step` over the same steps. Tokens are counted
without padding. A forward pass holds at most the same number of tokens, padding included, on both
sides. The weights at the end are compared: both must have trained the same.

On a CPU TRL's fused head scores every position; with Triton it leaves out those without loss, and the
ratio is smaller.

Memory is the peak of the process (with `--device cuda`: of the GPU) above what it held before its
first step. On a GPU both sides compute in bf16 over fp32 weights: coevo by ZeRO 1, TRL by autocast.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

PROMPT = 48
TEMPERATURE = 1.0
LR = 1e-4


def memory(field: str) -> int:
    """Bytes of VmRSS or VmHWM of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}")


def reset_peak(device: str) -> int:
    """Forget the peak so far; bytes held now."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def peak(device: str) -> int:
    """Bytes at most since `reset_peak`; what was asked of a GPU has ended then."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    return memory("VmHWM")


def trajectories(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Skewed lengths: log-normal, a median of 120 tokens after the prompt. A quarter of them is
    sampled, in turns of 8 tokens, as in an agent's episode; the last turn is sampled."""
    rng = np.random.default_rng(0)
    out: list[dict[str, Any]] = []
    for _ in range(options.trajectories):
        length = int(np.clip(np.exp(rng.normal(np.log(120), options.skew)), 16, options.longest))
        length = length // 8 * 8
        sampled = (np.arange(length) // 8) % 4 == 3
        sampled[-8:] = True
        out.append(
            {
                "prompt": rng.integers(3, options.vocabulary, PROMPT).tolist(),
                "completion": rng.integers(3, options.vocabulary, length).tolist(),
                "sampled": sampled.tolist(),
                "advantage": float(rng.normal()),
            }
        )
    return out


def save_model(path: Path, options: argparse.Namespace) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=options.vocabulary,
            hidden_size=options.hidden,
            intermediate_size=3 * options.hidden,
            num_hidden_layers=options.layers,
            num_attention_heads=options.hidden // 64,
            num_key_value_heads=options.hidden // 128,
            head_dim=64,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
    ).save_pretrained(path)


def run_coevo(data: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    import torch
    from safetensors.torch import save_file

    from trainer.batch import TrainBatch
    from trainer.config import TrainerConfig
    from trainer.engine import TrainerEngine

    rows = [r["prompt"] + r["completion"] for r in data]
    mask = [[False] * PROMPT + r["sampled"] for r in data]
    lengths = [len(r) for r in rows]
    flat = np.concatenate(mask)
    batch = TrainBatch(
        token_ids=np.concatenate(rows).astype(np.int32),
        loss_mask=flat,
        behaviour=np.where(flat, np.float32(options.behaviour), np.float32(0)),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        trajectory=np.arange(len(rows)),
        group=np.zeros(len(rows), dtype=np.int64),
        advantage=np.array([r["advantage"] for r in data], dtype=np.float32),
        temperature=TEMPERATURE,
    )
    config = TrainerConfig(
        lr=LR,
        betas=(0.9, 0.999),
        ratio_mask=None,
        dual_clip=None,
        micro_batch_tokens=options.rows * (PROMPT + max(len(r["completion"]) for r in data)),
        threads_per_rank=options.threads,
        device=options.device,
        dtype="bf16" if options.device == "cuda" else "fp32",
        zero_stage=1 if options.device == "cuda" else 0,
    )
    torch.set_num_threads(options.threads)
    engine = TrainerEngine(config, str(options.work / "model"))
    held = reset_peak(options.device)
    engine.train_step(batch)
    started = time.perf_counter()
    for _ in range(options.steps - 1):
        engine.train_step(batch)
    most = peak(options.device) - held
    seconds = time.perf_counter() - started
    weights = {n: w.float() for n, w in engine.named_weights()}
    save_file(weights, str(options.work / "coevo.safetensors"))
    engine.close()
    return {"seconds": seconds, "peak": most}


def run_trl(data: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(options.threads)
    count = len(data)

    def padded(name: str, value: Any) -> torch.Tensor:
        longest = max(len(r[name]) for r in data)
        return torch.tensor([r[name] + [value] * (longest - len(r[name])) for r in data])

    ones = [dict(r, ones=[1] * len(r["completion"])) for r in data]
    longest = max(len(r["completion"]) for r in data)
    prepared = {
        "prompt_ids": torch.tensor([r["prompt"] for r in data]),
        "prompt_mask": torch.ones(count, PROMPT, dtype=torch.long),
        "completion_ids": padded("completion", 0),
        "completion_mask": torch.tensor(
            [r["ones"] + [0] * (longest - len(r["ones"])) for r in ones]
        ),
        "tool_mask": padded("sampled", False).long(),
        "old_per_token_logps": torch.full((count, longest), options.behaviour),
        "advantages": torch.tensor([r["advantage"] for r in data]),
        "num_items_in_batch": torch.tensor(float(sum(sum(r["sampled"]) for r in data))),
    }

    class Prepared(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            return dict(prepared)

    class Clock(TrainerCallback):  # type: ignore[misc]
        started = ended = 0.0
        held = peak = 0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 0:
                self.held = reset_peak(options.device)
            if state.global_step == 1:
                self.started = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.peak = peak(options.device) - self.held
            self.ended = time.perf_counter()

    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="<pad>"))
    trainer = Prepared(
        model=AutoModelForCausalLM.from_pretrained(options.work / "model", dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(options.work / "trl"),
            per_device_train_batch_size=options.rows,
            gradient_accumulation_steps=count // options.rows,
            num_iterations=options.steps,
            max_steps=options.steps,
            num_generations=count,
            max_completion_length=longest,
            loss_type="dapo",
            beta=0.0,
            epsilon=0.2,
            epsilon_high=0.28,
            temperature=TEMPERATURE,
            learning_rate=LR,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            gradient_checkpointing=False,
            use_cpu=options.device == "cpu",
            bf16=options.device == "cuda",
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * count}),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"
        ),
    )
    clock = Clock()
    trainer.add_callback(clock)
    trainer.train()
    weights = {
        n: p.detach().float().cpu().contiguous() for n, p in trainer.model.named_parameters()
    }
    save_file(weights, str(options.work / "trl.safetensors"))
    return {"seconds": clock.ended - clock.started, "peak": clock.peak}


def measure(side: str, options: argparse.Namespace) -> dict[str, Any]:
    """One side in a process of its own."""
    process = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--side", side, "--work", str(options.work)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": str(options.threads),
            "HF_HUB_OFFLINE": "1",
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "DS_ACCELERATOR": options.device,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(options.port),
        },
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise SystemExit(f"{side} ended with code {process.returncode}:\n{process.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return found


def difference(options: argparse.Namespace) -> float:
    """Of the weights after training: norm of the difference over the norm of the change."""
    from safetensors.torch import load_file

    start = load_file(options.work / "model" / "model.safetensors")
    a, b = (load_file(options.work / f"{s}.safetensors") for s in ("coevo", "trl"))
    apart = sum(float(((a[n] - b[n]) ** 2).sum()) for n in a)
    return (apart / sum(float(((a[n] - start[n]) ** 2).sum()) for n in a)) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=32)
    parser.add_argument("--skew", type=float, default=0.9, help="of the log-normal lengths")
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=4, help="of TRL's micro-batches")
    parser.add_argument("--steps", type=int, default=4, help="the first one is not timed")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dry-run", action="store_true", help="check the options")
    parser.add_argument("--port", type=int, default=29555)
    parser.add_argument("--side", choices=["coevo", "trl"], help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would measure with {vars(options)}")
        return
    # The sampler's log-probs: those of random tokens under a random model, for both sides alike.
    options.behaviour = -float(np.log(options.vocabulary))
    data = trajectories(options)
    if options.side:
        side = run_coevo if options.side == "coevo" else run_trl
        print(json.dumps(side(data, options)))
        return
    lengths = [PROMPT + len(r["completion"]) for r in data]
    tokens = sum(lengths) * (options.steps - 1)
    print(
        f"{len(data)} trajectories of {min(lengths)} to {max(lengths)} tokens (median "
        f"{int(np.median(lengths))}), {sum(sum(r['sampled']) for r in data)} sampled; "
        f"{options.steps - 1} timed steps, {options.threads} thread(s), best of {options.repeats}"
    )
    if options.device == "cuda":
        import torch

        print(torch.cuda.get_device_name(0))
    with tempfile.TemporaryDirectory() as scratch:
        options.work = Path(scratch)
        save_model(options.work / "model", options)
        best: dict[str, dict[str, Any]] = {}
        for _ in range(options.repeats):
            for side in ("coevo", "trl"):
                found = measure(side, options)
                if side not in best or found["seconds"] < best[side]["seconds"]:
                    best[side] = found
        apart = difference(options)
    names = {"coevo": "coevo", "trl": f"TRL {metadata.version('trl')}"}
    for side, found in best.items():
        print(
            f"{names[side]:<12} {tokens / found['seconds']:8.0f} tokens/s   peak "
            f"{found['peak'] / 2**20:7.0f} MiB"
        )
    print(
        f"ratio        {best['trl']['seconds'] / best['coevo']['seconds']:8.2f}x           "
        f"{best['coevo']['peak'] / best['trl']['peak']:7.2f}x\n"
        f"the weights differ by {apart:.1e} of the change that training made"
    )


if __name__ == "__main__":
    main()
