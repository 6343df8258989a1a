"""The roles of evolution against a real vLLM server whose model is random: what it says is garbage.

Guided decoding must give valid JSON all the same, and where it cannot (an endless string), the
failure must be typed, charged, and no candidate.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

pytest.importorskip("vllm")
pytest.importorskip("openai")

import torch
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from vllm_server import vllm_server

from harness.bundle import Bundle, Component
from harness.evolve.engine import evolve
from harness.evolve.journal import Journal
from harness.evolve.llm.client import Ask, Chat
from harness.evolve.llm.config import LLMConfig
from harness.evolve.llm.errors import MalformedOutput
from harness.evolve.parts import PartFailed, Situation
from harness.evolve.proposers.agent import AgentProposer
from harness.evolve.recipe import load_recipe
from harness.evolve.records import Digest, Episode, Evidence, Landscape, Objective, TraceStep
from harness.evolve.state import EvolutionState

pytestmark = pytest.mark.slow

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
H0 = Bundle(
    (Component("window", "context_mgmt", "harness.processors.history_window:HistoryWindow"),)
)
STEPS = tuple(TraceStep(n, f"take mug {n}", "You see a mug.", (), f"d{n}") for n in range(4))
EPISODES = tuple(
    Episode(
        f"t{n}", seed, H0.id, "completed", False, 0.0, 4, instruction="put an apple away.",
        trace=STEPS, tokens=1000,
    )
    for n in range(2)
    for seed in range(2)
)  # fmt: skip


def random_model(directory: Path) -> None:
    """One layer over bytes, with a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={char: n for n, char in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|end|>", pad_token="<|end|>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=32768,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).float()
    model.config.dtype = torch.float32
    model.save_pretrained(directory)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("random-model")
    random_model(directory)
    # max-num-batched-tokens as long as a prompt: one with a seed that is prefilled in chunks ends the
    # CPU engine ("CPU Generator does not use offset").
    # JSON allows blanks between tokens without end, and a random model likes them.
    blanks = '{"backend": "xgrammar", "disable_any_whitespace": true}'
    arguments = [
        "--max-model-len", 24576, "--max-num-batched-tokens", 24576, "--kv-cache-memory-bytes",
        128 << 20, "--max-num-seqs", 8, "--structured-outputs-config", blanks,
    ]  # fmt: skip
    with vllm_server(directory, "random", *arguments) as address:
        yield address


def chat_at(url: str, path: Path | None = None, **more: object) -> Chat:
    endpoint = {"base_url": url, "model": "random", "seed": True, "max_retries": 0, **more}
    settings = LLMConfig.model_validate(
        {
            "endpoints": {"local": {**endpoint, "price_in": 1.0, "price_out": 2.0}},
            "roles": {"default": ["local"]},
            "max_tokens": 120,
            "temperature": 1.0,
        }
    )
    return Chat.from_config(settings, path, random.Random(0))


def run(chat, what):
    async def go():
        try:
            return await what
        finally:
            await chat.close()

    return asyncio.run(go())


class Bounded(BaseModel):
    """A form that ends by itself whatever the model likes to say."""

    model_config = ConfigDict(extra="forbid")
    verdict: Literal["pass", "refuse"]
    score: Literal[1, 2, 3, 4, 5]
    flags: tuple[Literal["a", "b"], ...] = Field(max_length=3)


def test_guided_decoding_makes_valid_answers_of_a_random_model(url):
    chat = chat_at(url)

    async def ask(seed):
        ask = Ask("leakage", ({"role": "user", "content": "Well?"},), seed=seed)
        return await chat.structured(ask, Bounded, repairs=0)

    async def go():
        return await asyncio.gather(*(ask(seed) for seed in range(8)))

    answers = run(chat, go())
    assert len({answer.model_dump_json() for answer in answers}) > 1
    assert chat.spent.calls == 8
    assert chat.spent.failed == 0
    assert chat.spent.money > 0


def test_without_guidance_garbage_is_a_typed_failure_that_is_charged(url):
    chat = chat_at(url, structured="none")
    ask = Ask("critic", ({"role": "user", "content": "Well?"},))
    with pytest.raises(MalformedOutput, match="critic: 2 answers could not be used"):
        run(chat, chat.structured(ask, Bounded))
    assert chat.spent.calls == 2
    assert chat.spent.completion_tokens > 0


@pytest.mark.parametrize("tool_choice", ["auto", "required"])
def test_an_evolver_that_talks_garbage_hands_nothing_in(url, tool_choice):
    chat = chat_at(url, tool_choice=tool_choice)
    at = Situation(1, H0, EPISODES, EvolutionState.start(H0).memory, 7, llm=chat)
    digest = Digest((Evidence("t0", "put an apple away.", 2, 0, "failed", "loop", ("loop",)),))
    landscape = Landscape((Objective("loop", ("t0",), 1.0),))
    proposer = AgentProposer(k=1, max_steps=3)
    with pytest.raises(PartFailed, match="no session handed in a candidate"):
        run(chat, proposer.propose(at, digest, landscape))
    assert chat.spent.calls >= 1
    assert len(chat.dropped) == 1


def test_a_whole_round_with_a_random_model_is_a_no_op_that_says_why(url, tmp_path):
    chat = chat_at(url, tmp_path / "llm.jsonl")
    recipe, parts = load_recipe("aegis")

    async def no_rollouts(request):
        raise AssertionError(f"nothing may be rolled out: {request.purpose}")

    state = EvolutionState.start(H0, round=1)
    result = run(
        chat,
        evolve(recipe, parts, state, EPISODES, no_rollouts, Journal(), random.Random(7), llm=chat),
    )
    assert result.outcome == "no_op"
    assert result.reason
    assert result.incumbent == H0
    assert chat.spent.calls > 0
    assert chat.spent.tokens > 0
    again = chat_at(url, tmp_path / "llm.jsonl")
    assert again.spent == chat.spent
