"""The objective against TRL's GRPOTrainer on groups of equal size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainer.batch import TrainBatch, normaliser
from trainer.compat import load_model
from trainer.config import Aggregation, TrainerConfig
from trainer.logprobs import TokenScorer
from trainer.objective import Tokens, policy_loss
from trainer.packing import collate, input_lengths

PROMPT, COMPLETION, ROWS = 6, 4, 6


@pytest.fixture(scope="module")
def trl_trainer(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="<pad>"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"
    )
    return GRPOTrainer(
        model=load_model(str(tiny_model), TrainerConfig()),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")),
            per_device_train_batch_size=ROWS,
            num_generations=ROWS,
            max_completion_length=COMPLETION,
            beta=0.0,
            epsilon=0.2,
            epsilon_high=0.28,
            temperature=0.8,
            use_cpu=True,
            bf16=False,
            report_to=[],
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a"]}),
        processing_class=tokenizer,
    )


def data() -> tuple[TrainBatch, dict[str, torch.Tensor]]:
    """The same rows for both: completions of 1 to 4 tokens, off policy by up to ±0.5."""
    rng = np.random.default_rng(0)
    ids = rng.integers(3, 300, (ROWS, PROMPT + COMPLETION))
    sizes = np.array([4, 3, 2, 4, 1, 4])
    mask = np.arange(COMPLETION) < sizes[:, None]
    advantage = rng.normal(size=ROWS).astype(np.float32)
    kept = np.concatenate([np.ones((ROWS, PROMPT), bool), mask], axis=1)
    sampled = np.concatenate([np.zeros((ROWS, PROMPT), bool), mask], axis=1)
    batch = TrainBatch(
        token_ids=ids[kept].astype(np.int32),
        loss_mask=sampled[kept],
        behaviour=np.zeros(int(kept.sum()), dtype=np.float32),
        offsets=np.concatenate([[0], np.cumsum(kept.sum(1))]),
        trajectory=np.arange(ROWS),
        group=np.zeros(ROWS, dtype=np.int64),
        advantage=advantage,
        temperature=0.8,
    )
    inputs = {
        "prompt_ids": torch.from_numpy(ids[:, :PROMPT]),
        "prompt_mask": torch.ones(ROWS, PROMPT, dtype=torch.long),
        "completion_ids": torch.from_numpy(ids[:, PROMPT:]),
        "completion_mask": torch.from_numpy(mask.astype(np.int64)),
        "advantages": torch.from_numpy(advantage),
        "num_items_in_batch": torch.tensor(float(mask.sum())),
    }
    return batch, inputs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss_type", "aggregation", "ratio"),
    [
        ("dapo", "token", "token"),
        ("grpo", "trajectory", "token"),
        ("dr_grpo", "constant", "token"),
        ("grpo", "trajectory", "sequence"),
    ],
)
def test_loss_and_gradient_equal_trl(
    trl_trainer: Any, loss_type: str, aggregation: Aggregation, ratio: str
) -> None:
    config = TrainerConfig(
        ratio=ratio,  # type: ignore[arg-type]
        ratio_mask=None,
        dual_clip=None,
        aggregation=aggregation,
        constant_length=COMPLETION,
    )
    model = trl_trainer.model
    batch, inputs = data()
    scorer = TokenScorer(model)
    micro = collate(batch, input_lengths(batch), range(ROWS), "padded")
    parameters = list(model.parameters())

    # Behaviour log-probs: the model's own, shifted, so that some tokens are clipped.
    with torch.no_grad():
        current, _ = scorer(model, micro, 0.8, "cpu")
    shift = torch.linspace(-0.5, 0.5, len(current))
    behaviour = current - shift
    old = torch.zeros(ROWS, COMPLETION)
    old[inputs["completion_mask"].bool()] = behaviour
    trl_trainer.loss_type = loss_type
    trl_trainer.importance_sampling_level = "sequence" if ratio == "sequence" else "token"
    trl_trainer.current_gradient_accumulation_steps = 1
    model.train()
    theirs = trl_trainer._compute_loss(model, {**inputs, "old_per_token_logps": old})
    their_gradients = torch.autograd.grad(theirs, parameters)

    weights, denominator = normaliser(batch, np.ones(ROWS, bool), aggregation, COMPLETION)
    owner = torch.from_numpy(batch.trajectory[micro.segment])
    counts = torch.bincount(owner, minlength=ROWS)
    means = torch.bincount(owner, weights=shift, minlength=ROWS) / counts
    logprobs, _ = scorer(model, micro, 0.8, "cpu")
    ours = policy_loss(
        Tokens(
            logprobs=logprobs,
            behaviour=behaviour,
            advantage=torch.from_numpy(batch.advantage)[owner],
            weight=torch.from_numpy(weights)[owner],
            sequence_log_ratio=means.float()[owner],
        ),
        config,
    )
    our_gradients = torch.autograd.grad(ours.total / denominator, parameters)
    torch.testing.assert_close(
        ours.total.detach() / denominator, theirs.detach(), atol=1e-6, rtol=1e-5
    )
    for a, b in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-3)
