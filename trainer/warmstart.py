"""Warm start: a small model made from nothing, taught on demonstrations with TRL's SFTTrainer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    set_seed,
)
from trl import SFTTrainer

from trainer.sft import Progress, sft_config, train_and_save
from trainer.warmstart_config import ArchitectureConfig, WarmstartConfig

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Example:
    """prompt: rendered text that ends where the model answers. answer: without the end token."""

    prompt: str
    answer: str


def make_tokenizer(texts: Iterable[str], vocab: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of at most `vocab` entries with the chat template above."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[AddedToken(f"<|{role}|>", special=True) for role in ROLES],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(
    architecture: ArchitectureConfig, tokenizer: PreTrainedTokenizerFast, seed: int
) -> PreTrainedModel:
    """A randomly initialised fp32 decoder with tied embeddings."""
    set_seed(seed)
    common = {
        "vocab_size": len(tokenizer),
        "hidden_size": architecture.hidden,
        "intermediate_size": architecture.intermediate,
        "num_hidden_layers": architecture.layers,
        "num_attention_heads": architecture.heads,
        "num_key_value_heads": architecture.kv_heads,
        "head_dim": architecture.head_dim,
        "max_position_embeddings": architecture.max_positions,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "dtype": torch.float32,
    }
    if architecture.family == "llama":
        return LlamaForCausalLM(LlamaConfig(**common))
    return Qwen3ForCausalLM(Qwen3Config(**common))


class _WeightedSFTTrainer(SFTTrainer):
    """The answer's mean cross-entropy plus `prompt_weight` times the prompt's.

    A policy answers in a few tokens among a hundred: the answer alone teaches too slowly to read
    the prompt, and the plain mean over all tokens too slowly to answer.
    """

    prompt_weight: float
    answer_start: int

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        ids, attention = inputs["input_ids"], inputs["attention_mask"].bool()
        logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits
        losses = torch.nn.functional.cross_entropy(
            logits[:, :-1].transpose(1, 2).float(), ids[:, 1:], reduction="none"
        )
        positions = torch.arange(ids.shape[1], device=ids.device)
        starts = ((ids == self.answer_start) * positions).max(dim=1).values
        answer = (positions[1:] > starts[:, None]) & attention[:, 1:]
        prompt = ~answer & attention[:, 1:]
        loss = losses[answer].mean() + self.prompt_weight * losses[prompt].mean()
        return (loss, {"logits": logits}) if return_outputs else loss


def warmstart(
    config: WarmstartConfig,
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    out: Path,
    report: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Make the model, teach it, write a Hugging Face directory to `out`; what was measured.

    Raises ValueError where an example would be cut at the model's last position.
    """
    torch.set_num_threads(config.threads)
    model = make_model(config.architecture, tokenizer, config.seed)
    rows = [
        tokenizer.encode(e.prompt, add_special_tokens=False)
        + tokenizer.encode(e.answer + END, add_special_tokens=False)
        for e in examples
    ]
    longest = max(len(row) for row in rows)
    if longest > config.architecture.max_positions:
        raise ValueError(
            f"a demonstration has {longest} tokens; warmstart.architecture.max_positions is "
            f"{config.architecture.max_positions}: raise it"
        )
    with tempfile.TemporaryDirectory(prefix="coevo-sft-") as scratch:
        trainer = _WeightedSFTTrainer(
            model=model,
            args=sft_config(config, scratch, warmup_steps=50, adam_beta2=0.95, weight_decay=0.01),
            train_dataset=Dataset.from_dict({"input_ids": rows}),
            processing_class=tokenizer,
        )
        trainer.prompt_weight = config.prompt_weight
        trainer.answer_start = tokenizer.vocab["<|assistant|>"]
        if report is not None:
            trainer.add_callback(Progress(report))
        measured = train_and_save(trainer, out)
    return {
        "examples": float(len(rows)),
        "tokens": float(sum(map(len, rows))),
        **measured,
    }
