"""What every supervised training with TRL's SFTTrainer shares: settings, progress, the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer

from trainer.warmstart_config import FinetuneConfig, WarmstartConfig


class Progress(TrainerCallback):
    """Calls `report` with (steps done, steps in all) after each optimiser step."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self._report = report

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._report(state.global_step, state.max_steps)


def sft_config(config: WarmstartConfig | FinetuneConfig, scratch: str, **more: Any) -> SFTConfig:
    """fp32, nothing cut, nothing saved or reported; `more`: further fields of SFTConfig."""
    return SFTConfig(
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
        **more,
    )


def train_and_save(trainer: SFTTrainer, out: Path) -> dict[str, float]:
    """Train, write model and tokenizer as a Hugging Face directory; final loss and seconds."""
    result = trainer.train()
    trainer.model.save_pretrained(out)
    trainer.processing_class.save_pretrained(out)
    return {
        "loss": float(result.training_loss),
        "seconds": float(result.metrics["train_runtime"]),
    }
