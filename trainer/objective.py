"""The cross-harness GRPO objective: pure functions on flat tensors, one entry a sampled token.

E[min(ρÂ, clip(ρ, 1−ε_low, 1+ε_high)Â)] − β·KL(π_θ ‖ π_ref), with ρ = π_θ/π_b against the cached
log-probs of the engine that sampled the token. Sums are returned, not means: the caller divides by
a denominator that counts the whole optimiser step, so that the gradient does not depend on how the
step was cut into micro-batches and ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.config import TrainerConfig
from trainer.errors import TrainerError

HISTOGRAM_BINS = 2001
HISTOGRAM_EDGE = 1.0
"""Log ratios are counted in bins of 0.001 between −1 and 1, the outermost bins open."""

QUANTILES = (0.01, 0.05, 0.5, 0.95, 0.99)

SUMS = (
    "tokens",
    "loss",
    "kl_mismatch",
    "abs_dlogp",
    "kept",
    "clipped",
    "entropy",
    "kl_reference",
)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the objective needs of k sampled tokens; all float tensors [k].

    logprobs: of the policy in training, with grad. behaviour: of the sampler. advantage, weight: of
    the token's trajectory. old: the trainer's own log-probs at insertion (decoupled).
    sequence_log_ratio: mean of log π_θ/π_b over the token's trajectory, no grad (sequence).
    reference: log-probs of M_0 (kl_beta > 0). entropy: for the metrics.
    """

    logprobs: torch.Tensor
    behaviour: torch.Tensor
    advantage: torch.Tensor
    weight: torch.Tensor
    old: torch.Tensor | None = None
    sequence_log_ratio: torch.Tensor | None = None
    reference: torch.Tensor | None = None
    entropy: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """total: weighted sum over tokens, with grad. sums: float64 [len(SUMS)], additive over
    micro-batches and ranks. histogram: int64 [HISTOGRAM_BINS] of log π_θ/π_b. peak: its largest
    absolute value."""

    total: torch.Tensor
    sums: torch.Tensor
    histogram: torch.Tensor
    peak: torch.Tensor


def _need(value: torch.Tensor | None, name: str, why: str) -> torch.Tensor:
    if value is None:
        raise TrainerError(f"objective: {why} needs {name}, which this batch does not have")
    return value


def clipped_surrogate(
    ratio: torch.Tensor,
    advantage: torch.Tensor,
    eps_low: float,
    eps_high: float,
    dual_clip: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's pessimistic surrogate a token (to maximise), and where the clip was active (bool).

    Dual clip (Ye et al. 2020): where the advantage is negative the surrogate is not below
    dual_clip · advantage, so that one token with a huge ratio cannot own the step.
    """
    free = ratio * advantage
    bounded = ratio.clamp(1 - eps_low, 1 + eps_high) * advantage
    out = torch.minimum(free, bounded)
    active = bounded < free
    if dual_clip is not None:
        floor = dual_clip * advantage
        low = (advantage < 0) & (out < floor)
        out = torch.where(low, floor, out)
        active = active | low
    return out, active


def kl_k3(logprobs: torch.Tensor, reference: torch.Tensor, clamp: float) -> torch.Tensor:
    """Schulman's k3 estimate of KL(π_θ ‖ π_ref) a token: e^d − d − 1, d = log π_ref − log π_θ."""
    d = (reference - logprobs).clamp(-clamp, clamp)
    return d.exp() - d - 1


def policy_loss(tokens: Tokens, config: TrainerConfig) -> Loss:
    """The summed loss of k tokens and the sums its metrics are made of."""
    clamp = config.log_ratio_clamp
    logprobs, behaviour = tokens.logprobs, tokens.behaviour
    to_behaviour = (logprobs - behaviour).clamp(-clamp, clamp)
    detached = to_behaviour.detach()
    masked_ratio = detached.exp()
    scale = torch.ones_like(behaviour)

    if config.ratio == "token":
        ratio = to_behaviour.exp()
    elif config.ratio == "sequence":
        # Value of the trajectory's ratio, gradient of each token's share (GSPO-token): the sum over
        # a trajectory is the sequence objective's gradient, however it is cut into segments.
        mean = _need(tokens.sequence_log_ratio, "sequence_log_ratio", "ratio 'sequence'")
        ratio = mean.clamp(-clamp, clamp).exp() * (logprobs - logprobs.detach()).exp()
    else:
        old = _need(tokens.old, "old log-probs (the behaviour pass)", "ratio 'decoupled'")
        ratio = (logprobs - old).clamp(-clamp, clamp).exp()
        # The mismatch of trainer and sampler is the importance weight's; the clip sees π_θ/π_old.
        masked_ratio = (old - behaviour).clamp(-clamp, clamp).exp()
        scale = masked_ratio.clamp(max=config.importance_cap)

    surrogate, active = clipped_surrogate(
        ratio, tokens.advantage, config.eps_low, config.eps_high, config.dual_clip
    )
    kept = torch.ones_like(active)
    if config.ratio_mask is not None:
        kept = (masked_ratio >= config.ratio_mask[0]) & (masked_ratio <= config.ratio_mask[1])
    # where, not multiply: an infinite value times 0 would be NaN.
    per_token = torch.where(kept, -scale * surrogate, torch.zeros_like(surrogate))
    reference_kl = torch.zeros_like(behaviour)
    if config.kl_beta > 0:
        reference = _need(tokens.reference, "reference log-probs", "kl_beta > 0")
        kl = kl_k3(logprobs, reference, clamp)
        reference_kl = kl.detach()
        per_token = per_token + config.kl_beta * kl
    total = (per_token * tokens.weight).sum()

    entropy = torch.zeros_like(behaviour) if tokens.entropy is None else tokens.entropy.detach()
    sums = torch.stack(
        [
            torch.tensor(float(len(behaviour)), dtype=torch.float64, device=behaviour.device),
            total.detach().double(),
            # k3 of KL(π_b ‖ π_θ): the tokens were sampled from π_b.
            (detached.double().exp() - detached.double() - 1).sum(),
            detached.abs().double().sum(),
            kept.double().sum(),
            (active & kept).double().sum(),
            entropy.double().sum(),
            reference_kl.double().sum(),
        ]
    )
    return Loss(total, sums, _histogram(detached), detached.abs().max())


def _histogram(log_ratio: torch.Tensor) -> torch.Tensor:
    half = HISTOGRAM_BINS // 2
    index = (log_ratio / HISTOGRAM_EDGE * half).round().clamp(-half, half).long() + half
    return torch.bincount(index, minlength=HISTOGRAM_BINS)


def ratio_quantiles(histogram: torch.Tensor) -> dict[str, float]:
    """Quantiles of π_θ/π_b from the counts of its logarithm, to 0.001 in log ratio."""
    counts = histogram.double().cumsum(0)
    total = float(counts[-1])
    half = HISTOGRAM_BINS // 2
    out = {}
    for q in QUANTILES:
        at = int(torch.searchsorted(counts, torch.tensor(q * total, dtype=torch.float64)))
        log_ratio = (min(at, HISTOGRAM_BINS - 1) - half) / half * HISTOGRAM_EDGE
        out[f"ratio_p{round(q * 100):02d}"] = float(torch.tensor(log_ratio).exp())
    return out
