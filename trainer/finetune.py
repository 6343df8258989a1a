"""Supervised training on sampled tokens as they are, with TRL's SFTTrainer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

from trainer.warmstart_config import FinetuneConfig


class _Progress(TrainerCallback):
    def __init__(self, report: Callable[[int, int], None]) -> None:
        self._report = report

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._report(state.global_step, state.max_steps)


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
            args=SFTConfig(
                output_dir=scratch,
                per_device_train_batch_size=config.batch_size,
                num_train_epochs=config.epochs,
                learning_rate=config.lr,
                lr_scheduler_type="linear",
                max_grad_norm=1.0,
                train_sampling_strategy="group_by_length",
                max_length=None,
                gradient_checkpointing=False,
                bf16=False,
                use_cpu=not torch.cuda.is_available(),
                save_strategy="no",
                report_to="none",
                logging_strategy="no",
                disable_tqdm=True,
                seed=config.seed,
                dataloader_pin_memory=False,
            ),
            train_dataset=Dataset.from_dict({"input_ids": list(input_ids), "labels": list(labels)}),
            processing_class=tokenizer,
        )
        trainer.add_callback(_Progress(report))
        result = trainer.train()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return {
        "segments": float(len(input_ids)),
        "tokens": float(sum(map(len, input_ids))),
        "loss": float(result.training_loss),
        "seconds": float(result.metrics["train_runtime"]),
    }
