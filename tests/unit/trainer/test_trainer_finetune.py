"""Supervised training on sampled tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_trainer import VOCABULARY, save_tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainer.finetune import finetune
from trainer.warmstart import make_tokenizer
from trainer.warmstart_config import FinetuneConfig

pytestmark = pytest.mark.slow


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = save_tiny_model(tmp_path / "model")
    make_tokenizer(["go to desk 1"], VOCABULARY).save_pretrained(path)
    return path


def logprob(path: Path, ids: list[int], at: int) -> float:
    loaded = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        return float(torch.log_softmax(loaded(torch.tensor([ids])).logits[0, at - 1], -1)[ids[at]])


def test_only_sampled_tokens_are_taught_and_the_result_is_a_model_with_its_tokenizer(
    model: Path, tmp_path: Path
) -> None:
    ids = [[10, 20, 30, 40, 50], [11, 21, 31, 41]]
    labels = [[-100, -100, -100, 40, 50], [-100, -100, 31, 41]]
    config = FinetuneConfig(lr=3e-3, batch_size=2, epochs=8, threads=1)
    steps: list[tuple[int, int]] = []
    measured = finetune(config, model, ids, labels, tmp_path / "out", lambda *s: steps.append(s))
    assert measured["segments"] == 2
    assert measured["tokens"] == 9
    assert steps[-1] == (8, 8)
    for at in (3, 4):
        assert logprob(tmp_path / "out", ids[0], at) > logprob(model, ids[0], at) + 1
    # A prompt token is not taught: 20 after 10 becomes no likelier than another token would.
    assert logprob(tmp_path / "out", ids[0], 1) < logprob(model, ids[0], 1) + 1
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out")) <= VOCABULARY


def test_segments_that_the_model_cannot_take_are_refused(model: Path, tmp_path: Path) -> None:
    def teach(ids: list[int]) -> None:
        finetune(FinetuneConfig(), model, [ids], [ids], tmp_path / "out", lambda *_: None)

    with pytest.raises(ValueError, match=r"has 600 tokens, .* takes 512"):
        teach([1] * 600)
    with pytest.raises(ValueError, match=rf"has token {VOCABULARY}, .* ends at {VOCABULARY}"):
        teach([1, VOCABULARY])
