"""A tiny Qwen3 on disk, and batches of short segments for it: shared by the trainer's tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainer.batch import TrainBatch, make_batch

VOCABULARY = 300


def save_tiny_model(path: Path, tied: bool = True) -> Path:
    """A random Qwen3 (hidden 64, 2 layers). Large weights, so that log-probs differ."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=512,
            tie_word_embeddings=tied,
            initializer_range=0.2,
        )
    )
    model.save_pretrained(path)
    return path


def random_batch(
    trajectories: int = 8,
    segments: int = 2,
    seed: int = 0,
    temperature: float = 0.8,
    lengths: tuple[int, int] = (10, 30),
    near_equal: bool = False,
) -> TrainBatch:
    """Random segments, two sampled tokens at the end of each. near_equal: rewards that differ by
    rounding only."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(*lengths, trajectories * segments)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    mask = np.zeros(int(offsets[-1]), dtype=bool)
    for end in offsets[1:]:
        mask[end - 2 : end] = True
    batch, _ = make_batch(
        token_ids=rng.integers(0, VOCABULARY, len(mask)),
        loss_mask=mask,
        behaviour=np.where(mask, -5.7, 0.0),
        offsets=offsets,
        trajectory=np.repeat(np.arange(trajectories), segments),
        rewards=(
            np.where(np.arange(trajectories) < trajectories / 2, 0.1 + 0.2, 0.3)
            if near_equal
            else np.arange(trajectories) * 7 % 5 / 4.0
        ),
        groups=[f"task-{i % 2}" for i in range(trajectories)],
        harnesses=[f"h{i % 3}" for i in range(trajectories)],
        outcomes=["completed"] * trajectories,
        temperatures=temperature,
        advantage="pooled",
    )
    return batch


def two_turn_batch(split: bool, trajectories: int = 5) -> TrainBatch:
    """Episodes of two turns: context, 2 sampled, observation, 3 sampled. split: the second turn is a
    segment of its own that repeats the first as context, as after a change of history."""
    rng = np.random.default_rng(5)
    tokens: list[np.ndarray] = []
    masks: list[np.ndarray] = []
    owner: list[int] = []
    for trajectory in range(trajectories):
        first = int(rng.integers(4, 9))
        ids = rng.integers(0, VOCABULARY, first + 2 + 5 + 3)
        one, both = np.zeros(len(ids), bool), np.zeros(len(ids), bool)
        one[first : first + 2] = True
        both[-3:] = True
        parts = (
            [(ids[: first + 2], one[: first + 2]), (ids, both)] if split else [(ids, one | both)]
        )
        for part, mask in parts:
            tokens.append(part)
            masks.append(mask)
            owner.append(trajectory)
    mask = np.concatenate(masks)
    batch, _ = make_batch(
        token_ids=np.concatenate(tokens),
        loss_mask=mask,
        behaviour=np.where(mask, -5.7, 0.0),
        offsets=np.concatenate([[0], np.cumsum([len(t) for t in tokens])]),
        trajectory=np.array(owner),
        rewards=np.arange(trajectories) % 3 / 2.0,
        groups=["task"] * trajectories,
        harnesses=["h"] * trajectories,
        outcomes=["completed"] * trajectories,
        temperatures=0.8,
        advantage="pooled",
    )
    return batch
