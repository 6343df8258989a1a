"""What the GPU measurements share: options, the device's name, a model of a known size."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZES = {
    # hidden, layers, heads, kv heads, intermediate, vocabulary: the shapes of Qwen3 0.6B and 1.7B.
    "tiny": (128, 2, 2, 1, 256, 512),
    "0.6b": (1024, 28, 16, 8, 3072, 151_936),
    "1.7b": (2048, 28, 16, 8, 6144, 151_936),
}


def parser(doc: str) -> argparse.ArgumentParser:
    """With the options that every script has."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--size", choices=sorted(SIZES), default="0.6b", help="of a random Qwen3")
    made.add_argument("--dry-run", action="store_true", help="check the settings, without a GPU")
    return made


def device_name(needed: int = 1) -> str:
    """The GPUs' name; ends the program where there are fewer than `needed`."""
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < needed:
        sys.exit(f"this needs {needed} CUDA GPU(s) and torch {torch.__version__} sees {found}")
    return f"{found} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}"


@contextmanager
def model_directory(size: str) -> Iterator[Path]:
    """A random Qwen3 in bf16 on disk, without a tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    hidden, layers, heads, kv_heads, intermediate, vocabulary = SIZES[size]
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=intermediate,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
        head_dim=128 if hidden > 128 else 64, max_position_embeddings=4096,
        tie_word_embeddings=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(name)
        yield Path(name)
