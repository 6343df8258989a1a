"""Supervised training on sampled tokens as they are, with TRL's SFTTrainer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import SFTTrainer

from trainer.sft import Progress, sft_config, train_and_save
from trainer.warmstart_config import FinetuneConfig


def finetune(
    config: FinetuneConfig,
    model_path: Path,
    input_ids: Sequence[Sequence[int]],
    labels: Sequence[Sequence[int]],
    out: Path,
    report: Callable[[int, int], None],
) -> dict[str, float]:
    """Teach the model of `model_path` the tokens of `input_ids` that `labels` repeat (−100 elsewhere);
    write a Hugging Face directory to `out`; what was measured.

    Nothing is decoded, rendered or cut. Raises ValueError where a sequence is longer than the model's
    context.
    """
    torch.set_num_threads(config.threads)
    set_seed(config.seed)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    longest = max(map(len, input_ids))
    limit = model.config.get_text_config().max_position_embeddings
    if longest > limit:
        raise ValueError(f"a segment has {longest} tokens, the model {model_path} takes {limit}")
    largest, vocabulary = max(map(max, input_ids)), model.get_input_embeddings().num_embeddings
    if largest >= vocabulary:
        raise ValueError(
            f"a segment has token {largest}, the model {model_path} ends at {vocabulary}"
        )
    with tempfile.TemporaryDirectory(prefix="coevo-sft-") as scratch:
        trainer = SFTTrainer(
            model=model,
            args=sft_config(config, scratch),
            train_dataset=Dataset.from_dict({"input_ids": list(input_ids), "labels": list(labels)}),
            processing_class=tokenizer,
        )
        trainer.add_callback(Progress(report))
        measured = train_and_save(trainer, out)
    return {
        "segments": float(len(input_ids)),
        "tokens": float(sum(map(len, input_ids))),
        **measured,
    }
