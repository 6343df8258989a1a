"""Checks on the real engine and the real trainer: they start, and compute the same log-probs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from coevo.config import RunConfig
from coevo.preflight.checks import Check, fail, ok
from coevo.preflight.model import examine
from coevo.session import INFRASTRUCTURE, UNMET, failure
from coevo.stack import Stack
from coevo.training import PROBE_LIMIT
from rollout.policy.base import Request, Sample, Sampling
from trainer.batch import TrainBatch
from trainer.errors import TrainerError

REPEATS, NEW_TOKENS = 4, 16

KNOWN = (*UNMET, *INFRASTRUCTURE)


def engine_checks(config: RunConfig, model: Path, note: Callable[[str], None]) -> list[Check]:
    """Start what a run starts, sample a probe, and score it with the trainer."""
    prompts = examine(model, config.rollout).probe
    return asyncio.run(_checks(config, model, prompts, note))


async def _checks(
    config: RunConfig, model: Path, prompts: Sequence[tuple[int, ...]], note: Callable[[str], None]
) -> list[Check]:
    try:
        stack = await Stack.start(config, model, note)
    except KNOWN as error:
        return [fail("engine", _said(error), "see docs/policies.md and the message")]
    try:
        samples = await stack.policy.generate(requests(config, prompts))
        checks = [
            ok("engine", f"vLLM serves {model.name} ({config.policy.engine.dtype})"),
            ok("harness isolation", stack.level),
        ]
        if config.trains:
            note("starting the trainer …")
            checks += await _trainer_checks(config, stack, prompts, samples)
        return checks
    except KNOWN as error:
        return [fail("engine", _said(error), "see docs/policies.md and the message")]
    finally:
        await stack.close()


async def _trainer_checks(
    config: RunConfig,
    stack: Stack,
    prompts: Sequence[tuple[int, ...]],
    samples: Sequence[Sample],
) -> list[Check]:
    """As a round does it: colocated, the engine sleeps meanwhile and is woken after."""
    if config.colocated:
        await stack.policy.sleep()
    batch = probe_batch(prompts, samples, config.rollout.temperature)
    try:
        group = await asyncio.to_thread(stack.trainer)
        try:
            values = await asyncio.to_thread(group.behaviour_logprobs, batch)
        finally:
            await asyncio.to_thread(group.shutdown)
    except TrainerError as error:
        return [fail("trainer", str(error), "see docs/training.md and the message")]
    checks = [ok("trainer", group.layout), agreement(config, batch, values)]
    if config.colocated:
        await stack.serve_base()
        await stack.policy.generate(requests(config, prompts))
        checks.append(ok("placement", "colocated: the engine slept while the trainer worked"))
    return checks


def requests(config: RunConfig, prompts: Sequence[tuple[int, ...]]) -> list[Request]:
    """Each prompt with a few seeds, sampled as in a rollout but for its end."""
    return [
        Request(
            prompt,
            Sampling(
                temperature=config.rollout.temperature,
                max_tokens=min(NEW_TOKENS, config.rollout.max_new_tokens),
                seed=seed,
            ),
        )
        for prompt in prompts
        for seed in range(REPEATS)
    ]


def probe_batch(
    prompts: Sequence[tuple[int, ...]], samples: Sequence[Sample], temperature: float
) -> TrainBatch:
    """What the trainer scores: the sampled tokens after their prompts."""
    pairs = [
        (prompt, samples[i * REPEATS + k])
        for i, prompt in enumerate(prompts)
        for k in range(REPEATS)
    ]
    ids = [np.array([*prompt, *s.token_ids], dtype=np.int32) for prompt, s in pairs]
    count = len(pairs)
    return TrainBatch(
        token_ids=np.concatenate(ids),
        loss_mask=np.concatenate(
            [np.arange(len(x)) >= len(p) for x, (p, _) in zip(ids, pairs, strict=True)]
        ),
        behaviour=np.concatenate(
            [np.array([0.0] * len(p) + list(s.logprobs), dtype=np.float32) for p, s in pairs]
        ),
        offsets=np.cumsum([0, *map(len, ids)], dtype=np.int64),
        trajectory=np.arange(count),
        group=np.arange(count),
        advantage=np.zeros(count, dtype=np.float32),
        temperature=temperature,
    )


def agreement(config: RunConfig, batch: TrainBatch, values: np.ndarray) -> Check:
    """Engine against trainer on what the engine sampled, at the rollouts' temperature."""
    distance = np.abs(values - batch.behaviour)[batch.loss_mask]
    limit = PROBE_LIMIT[config.policy.engine.dtype]
    found = (
        f"engine ↔ trainer on {len(distance)} sampled tokens at temperature "
        f"{batch.temperature:g}: mean |Δ| {distance.mean():.2g}, max {distance.max():.2g} (limit "
        f"{limit:g})"
    )
    if not distance.max() <= limit:
        return fail(
            "log-probs",
            found,
            "the two compute different models: compare policy.engine.dtype with trainer.dtype, and "
            "another trainer.attn_implementation",
        )
    return ok("log-probs", found)


def _said(error: BaseException) -> str:
    told = failure(error)
    return told[0] if told else str(error)
