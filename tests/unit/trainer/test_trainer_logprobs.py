"""Log-probs of sampled tokens against full logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_trainer import VOCABULARY, random_batch, save_tiny_model

from trainer.batch import TrainBatch
from trainer.compat import load_model
from trainer.config import TrainerConfig
from trainer.logprobs import TokenScorer, parity
from trainer.objective import Tokens, policy_loss
from trainer.packing import Layout, collate, input_lengths

OPEN = TrainerConfig(ratio_mask=None)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return load_model(str(save_tiny_model(tmp_path, tied=request.param)), OPEN)


def full_logits(model: Any, batch: TrainBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies of all sampled tokens, a segment at a time, from whole logits."""
    values, entropies = [], []
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.token_ids[start:end].astype(np.int64))
        logits = model(ids[None], use_cache=False).logits[0, :-1].float() / batch.temperature
        logp = torch.log_softmax(logits, -1)
        mask = torch.from_numpy(batch.loss_mask[start + 1 : end])
        values.append(logp.gather(1, ids[1:, None])[mask, 0])
        entropies.append(-(logp.exp() * logp).sum(-1)[mask])
    return torch.cat(values), torch.cat(entropies)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_selected_rows_equal_full_logits(model: Any, layout: Layout) -> None:
    batch = random_batch()
    scorer = TokenScorer(model)
    with torch.no_grad():
        expected, entropy = full_logits(model, batch)
        micro = collate(batch, input_lengths(batch), range(batch.segments), layout)
        found, found_entropy = scorer(model, micro, batch.temperature, "cpu")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(found_entropy, entropy, atol=1e-4, rtol=0)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_gradients_equal_those_of_full_logits(model: Any, layout: Layout) -> None:
    batch = random_batch()
    scorer = TokenScorer(model)
    weights = torch.linspace(-1, 1, int(batch.loss_mask.sum()))

    def gradients(values: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad((values * weights).sum(), list(model.parameters())))

    expected = gradients(full_logits(model, batch)[0])
    micro = collate(batch, input_lengths(batch), range(batch.segments), layout)
    found = gradients(scorer(model, micro, batch.temperature, "cpu")[0])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


def test_temperature_divides_logits_not_logprobs_and_may_change_between_calls(model: Any) -> None:
    scorer = TokenScorer(model)
    for temperature in (1.0, 0.5, 1.0):
        batch = random_batch(temperature=temperature)
        micro = collate(batch, input_lengths(batch), range(batch.segments), "padded")
        with torch.no_grad():
            found, _ = scorer(model, micro, temperature, "cpu")
            expected, _ = full_logits(model, batch)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


def test_both_layouts_pass_the_parity_check_on_a_causal_attention_model(model: Any) -> None:
    found = parity(TokenScorer(model), model, VOCABULARY, "cpu", seed=0)
    assert max(found.values()) < 1e-5


def test_parity_sees_sequences_that_leak_into_each_other(model: Any) -> None:
    scorer = TokenScorer(model)

    def leaking(**arguments: Any) -> Any:
        return model(**{**arguments, "position_ids": None})

    found = parity(scorer, leaking, VOCABULARY, "cpu", seed=0)
    assert found["packed"] > 0.1
    assert found["padded"] < 1e-5


def test_splitting_a_trajectory_into_more_segments_keeps_the_gradient(model: Any) -> None:
    """[prompt a obs b] in one segment, or [prompt a] and [prompt a obs b] with only b sampled."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCABULARY, 12).astype(np.int32)
    first, second = np.zeros(12, bool), np.zeros(12, bool)
    first[4:6], second[10:12] = True, True

    def build(parts: list[tuple[np.ndarray, np.ndarray]]) -> TrainBatch:
        mask = np.concatenate([m for _, m in parts])
        return TrainBatch(
            token_ids=np.concatenate([t for t, _ in parts]),
            loss_mask=mask,
            behaviour=np.where(mask, -5.0, 0.0).astype(np.float32),
            offsets=np.concatenate([[0], np.cumsum([len(t) for t, _ in parts])]),
            trajectory=np.zeros(len(parts), dtype=np.int64),
            group=np.zeros(1, dtype=np.int64),
            advantage=np.ones(1, dtype=np.float32),
            temperature=1.0,
        )

    scorer = TokenScorer(model)

    def gradients(batch: TrainBatch) -> list[torch.Tensor]:
        micro = collate(batch, input_lengths(batch), range(batch.segments), "padded")
        logprobs, _ = scorer(model, micro, 1.0, "cpu")
        ones = torch.ones(len(logprobs))
        behaviour = torch.from_numpy(batch.behaviour[micro.token])
        loss = policy_loss(Tokens(logprobs, behaviour, ones, ones), OPEN)
        return list(torch.autograd.grad(loss.total, list(model.parameters())))

    whole = gradients(build([(ids, first | second)]))
    split = gradients(build([(ids[:6], first[:6]), (ids, second)]))
    for a, b in zip(whole, split, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
