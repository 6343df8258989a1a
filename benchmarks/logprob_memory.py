"""Peak memory of log-probs and their gradient, by vocabulary: the trainer's against whole logits.

Run it with `python benchmarks/logprob_memory.py`. Each figure is a process of its own: a model of one
small layer, one micro-batch of `--tokens` tokens with every `--every`-th one sampled, forward and
backward. What is counted is the peak above what the process held before, less the gradient of the
head, which is as large as the head itself on both sides. `[tokens, vocabulary]` is what one tensor of
fp32 logits takes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

HIDDEN = 64
VOCABULARIES = (1_000, 10_000, 50_000, 150_000)


def memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}")


def peak(side: str, vocabulary: int, tokens: int, every: int) -> int:
    """Bytes above what was held before, in this process."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from trainer.batch import TrainBatch
    from trainer.logprobs import TokenScorer
    from trainer.packing import collate, input_lengths

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=HIDDEN,
            intermediate_size=HIDDEN,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=tokens,
            tie_word_embeddings=False,
        )
    )
    ids = np.random.default_rng(0).integers(0, vocabulary, tokens).astype(np.int32)
    mask = np.arange(tokens) % every == every - 1
    batch = TrainBatch(
        token_ids=ids,
        loss_mask=mask,
        behaviour=np.zeros(tokens, dtype=np.float32),
        offsets=np.array([0, tokens]),
        trajectory=np.zeros(1, dtype=np.int64),
        group=np.zeros(1, dtype=np.int64),
        advantage=np.ones(1, dtype=np.float32),
        temperature=1.0,
    )
    scorer = TokenScorer(model)

    def once(count: int) -> None:
        if side == "coevo":
            part = TrainBatch(
                ids[:count], mask[:count], batch.behaviour[:count], np.array([0, count]),
                batch.trajectory, batch.group, batch.advantage, 1.0,
            )  # fmt: skip
            micro = collate(part, input_lengths(part), [0], "padded")
            values, _ = scorer(model, micro, 1.0, "cpu")
        else:
            rows = torch.from_numpy(ids[:count].astype(np.int64))
            logits = model(rows[None, :-1], use_cache=False).logits[0]
            chosen = torch.from_numpy(mask[1:count])
            values = torch.log_softmax(logits, -1).gather(1, rows[1:, None])[chosen, 0]
        values.sum().backward()

    once(2 * every)  # allocates gradients and what libraries keep
    Path("/proc/self/clear_refs").write_text("5")
    held = memory("VmRSS")
    once(tokens)
    return memory("VmHWM") - held - 4 * HIDDEN * vocabulary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--side", choices=["coevo", "logits"], help=argparse.SUPPRESS)
    parser.add_argument("--vocabulary", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(peak(options.side, options.vocabulary, options.tokens, options.every))
        return

    def measure(side: str, vocabulary: int) -> float:
        found = subprocess.run(
            [
                sys.executable, __file__, "--side", side, "--vocabulary", str(vocabulary),
                "--tokens", str(options.tokens), "--every", str(options.every),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return int(found.stdout.strip().splitlines()[-1]) / 2**20

    print(f"{options.tokens} tokens, every {options.every}th sampled; MiB")
    print(
        f"{'vocabulary':>10} {'coevo':>8} {'logits':>8} {'ratio':>7} {'[tokens, vocabulary]':>21}"
    )
    for vocabulary in VOCABULARIES:
        ours, theirs = measure("coevo", vocabulary), measure("logits", vocabulary)
        tensor = 4 * options.tokens * vocabulary / 2**20
        print(
            f"{vocabulary:>10} {ours:>8.0f} {theirs:>8.0f} {theirs / ours:>6.1f}x {tensor:>21.0f}"
        )


if __name__ == "__main__":
    main()
