"""The objective against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trainer.config import TrainerConfig
from trainer.errors import TrainerError
from trainer.objective import SUMS, Tokens, policy_loss, ratio_quantiles

LOG = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
SHIFT = torch.tensor([0.1, 0.6, -0.3], dtype=torch.float64)  # log π_θ − log π_b
ADVANTAGE = torch.tensor([1.0, 2.0, -1.5], dtype=torch.float64)


def tokens(**more: torch.Tensor) -> Tokens:
    fields: dict[str, torch.Tensor] = {
        "logprobs": LOG.clone().requires_grad_(),
        "behaviour": LOG - SHIFT,
        "advantage": ADVANTAGE,
        "weight": torch.ones(3, dtype=torch.float64),
    }
    return Tokens(**{**fields, **more})


def gradient(t: Tokens, config: TrainerConfig) -> tuple[float, list[float]]:
    total = policy_loss(t, config).total
    (grad,) = torch.autograd.grad(total, t.logprobs)
    return float(total.detach()), grad.tolist()


def test_three_tokens_have_the_closed_form_loss_and_gradient() -> None:
    loss, grad = gradient(tokens(), TrainerConfig())
    # Token 1: ratio e^.1 inside the clip. 2: e^.6 above 1.28, clipped, no gradient.
    # 3: ratio e^-.3 below 0.8 with a negative advantage: the minimum is the clipped 0.8·Â.
    assert loss == pytest.approx(-(math.exp(0.1) + 1.28 * 2 - 0.8 * 1.5))
    assert grad == pytest.approx([-math.exp(0.1), 0.0, 0.0])


def test_a_negative_advantage_above_the_clip_keeps_its_gradient_until_the_dual_clip() -> None:
    shift = torch.tensor([0.6, 1.5, 1.5], dtype=torch.float64)
    t = tokens(behaviour=LOG - shift, advantage=torch.full((3,), -1.0, dtype=torch.float64))
    open_mask = TrainerConfig(ratio_mask=None)
    loss, grad = gradient(t, open_mask)
    assert loss == pytest.approx(math.exp(0.6) + 3 + 3)
    assert grad == pytest.approx([math.exp(0.6), 0.0, 0.0])
    loss, grad = gradient(t, TrainerConfig(ratio_mask=None, dual_clip=None))
    assert grad == pytest.approx([math.exp(0.6), math.exp(1.5), math.exp(1.5)])


def test_tokens_outside_the_ratio_mask_carry_no_loss() -> None:
    shift = torch.tensor([0.0, 0.7, -0.7], dtype=torch.float64)
    result = policy_loss(tokens(behaviour=LOG - shift), TrainerConfig())
    assert float(result.total.detach()) == pytest.approx(-1.0)
    assert dict(zip(SUMS, result.sums.tolist(), strict=True))["kept"] == 1


def test_an_extreme_log_ratio_is_clamped_not_infinite() -> None:
    t = tokens(behaviour=LOG - torch.tensor([900.0, -900.0, 0.0], dtype=torch.float64))
    result = policy_loss(t, TrainerConfig(ratio_mask=None, dual_clip=None))
    result.total.backward()
    assert torch.isfinite(result.total)
    assert torch.isfinite(t.logprobs.grad).all()
    assert float(result.peak) == 20.0


def test_on_policy_the_gradient_is_minus_the_advantage() -> None:
    _, grad = gradient(tokens(behaviour=LOG), TrainerConfig())
    assert grad == pytest.approx((-ADVANTAGE).tolist())


def test_the_sequence_ratio_has_the_value_of_the_mean_and_the_gradient_of_its_share() -> None:
    mean = SHIFT.mean()
    advantage = torch.full((3,), 1.0, dtype=torch.float64)
    weight = torch.full((3,), 1 / 3, dtype=torch.float64)
    t = tokens(sequence_log_ratio=mean.expand(3), advantage=advantage, weight=weight)
    loss, grad = gradient(t, TrainerConfig(ratio="sequence", eps_high=0.5))
    # d/dθ of −exp(mean of log ratios)·Â
    assert loss == pytest.approx(-math.exp(mean))
    assert grad == pytest.approx([-math.exp(mean) / 3] * 3)


def test_decoupled_clips_against_old_and_weighs_by_the_truncated_mismatch() -> None:
    old = LOG - torch.tensor([0.1, 0.1, 0.1], dtype=torch.float64)
    behaviour = old - torch.tensor([0.2, 0.6, -0.2], dtype=torch.float64)
    t = tokens(old=old, behaviour=behaviour, advantage=torch.ones(3, dtype=torch.float64))
    config = TrainerConfig(ratio="decoupled", importance_cap=1.5)
    loss, grad = gradient(t, config)
    weights = [math.exp(0.2), 1.5, math.exp(-0.2)]
    assert loss == pytest.approx(-math.exp(0.1) * sum(weights))
    assert grad == pytest.approx([-math.exp(0.1) * w for w in weights])


def test_kl_to_the_reference_is_k3() -> None:
    reference = LOG + torch.tensor([0.5, 0.0, -0.5], dtype=torch.float64)
    zero = torch.zeros(3, dtype=torch.float64)
    t = tokens(reference=reference, advantage=zero)
    loss, grad = gradient(t, TrainerConfig(kl_beta=0.1))
    assert loss == pytest.approx(0.1 * (math.exp(0.5) - 1.5 + math.exp(-0.5) - 0.5))
    assert grad == pytest.approx([0.1 * (1 - math.exp(0.5)), 0.0, 0.1 * (1 - math.exp(-0.5))])


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        (TrainerConfig(ratio="decoupled"), "old log-probs"),
        (TrainerConfig(ratio="sequence"), "sequence_log_ratio"),
        (TrainerConfig(kl_beta=0.1), "reference log-probs"),
    ],
)
def test_what_an_option_needs_is_named_when_it_is_missing(
    config: TrainerConfig, missing: str
) -> None:
    with pytest.raises(TrainerError, match=missing):
        policy_loss(tokens(), config)


def test_metrics_are_additive_sums() -> None:
    found = dict(zip(SUMS, policy_loss(tokens(), TrainerConfig()).sums.tolist(), strict=True))
    assert found["tokens"] == 3
    assert found["abs_dlogp"] == pytest.approx(1.0)
    assert found["kl_mismatch"] == pytest.approx(sum(math.exp(s) - 1 - s for s in SHIFT.tolist()))
    assert found["clipped"] == 2


def test_ratio_quantiles_come_from_the_histogram() -> None:
    log_ratio = torch.from_numpy(np.linspace(-0.5, 0.5, 1001))
    zero = torch.zeros(1001, dtype=torch.float64)
    t = Tokens(log_ratio.requires_grad_(), zero, zero, zero)
    found = ratio_quantiles(policy_loss(t, TrainerConfig()).histogram)
    assert found["ratio_p50"] == pytest.approx(1.0, abs=2e-3)
    assert math.log(found["ratio_p95"]) == pytest.approx(0.45, abs=2e-3)
    assert math.log(found["ratio_p01"]) == pytest.approx(-0.49, abs=2e-3)
