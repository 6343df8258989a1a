"""The API engine against vLLM's own OpenAI-compatible server: one call, and a whole run on it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("vllm")

import ray
import torch
import trl
import yaml
from transformers import Qwen3Config, Qwen3ForCausalLM
from vllm_server import vllm_server

from harness.events import Message, ToolSpec
from rollout.buffer import ReplayBuffer
from rollout.policy.api import APIEngine
from rollout.policy.base import ChatRequest, ContextOverflow, EngineError, Sampling
from rollout.policy.config import APIConfig
from trainer.warmstart import make_tokenizer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TOOL = ToolSpec("look_up", "Looks up.", {"type": "object", "properties": {}})


def random_model(path: Path) -> None:
    """A random Qwen3 that knows tools: its words are noise, the protocol is real."""
    tokenizer = make_tokenizer(["What do 4 x fork cost?", '{"name": "look_up"}'], 400)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    tokenizer.chat_template = template.read_text()
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=4096,
            tie_word_embeddings=True, bos_token_id=None, pad_token_id=0,
            eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        )
    ).float()  # fmt: skip
    model.config.dtype = torch.float32
    model.save_pretrained(path)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("served")
    random_model(path)
    arguments = ["--max-model-len", 2048, "--kv-cache-memory-bytes", 64 << 20, "--max-num-seqs", 16]
    with vllm_server(path, "tiny", *arguments) as address:
        yield address


def request(text: str, seed: int = 0, tools: tuple[ToolSpec, ...] = ()) -> ChatRequest:
    return ChatRequest((Message("user", text),), tools, Sampling(max_tokens=8, seed=seed))


def test_a_real_server_answers_with_counts_seeds_tools_and_the_context_outcome(url: str) -> None:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)

    async def run() -> None:
        engine = await APIEngine.start(APIConfig(base_url=url, model="tiny", max_retries=0))
        first = await engine.chat(request("Hi.", seed=3))
        again, other = await asyncio.gather(
            engine.chat(request("Hi.", seed=3)), engine.chat(request("Hi.", seed=4))
        )
        assert again == first
        assert other.content != first.content
        assert first.sampled_tokens == 8
        assert first.finish_reason == "length"
        told = await engine.chat(request("Hi.", tools=(TOOL,)))
        assert told.prompt_tokens > first.prompt_tokens + 50
        with pytest.raises(ContextOverflow, match="maximum context length is 2048"):
            await engine.chat(request("fork " * 3000))
        assert (await engine.spent()).calls == 5
        unknown = await APIEngine.start(APIConfig(base_url=url, model="huge", max_retries=0))
        with pytest.raises(EngineError, match="HTTP 404"):
            await unknown.chat(request("Hi."))
        await engine.shutdown()
        await unknown.shutdown()

    try:
        asyncio.run(run())
    finally:
        ray.shutdown()


def test_a_run_evolves_the_harness_around_a_hosted_model(url: str, tmp_path: Path) -> None:
    config = tmp_path / "api.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "extends": str(ROOT / "configs" / "toolbox_api.yaml"),
                "rounds": 1,
                "runs_dir": str(tmp_path),
                "environment": {"options": {"max_steps": 3}},
                "policy": {
                    "api": {
                        "base_url": url,
                        "model": "tiny",
                        "api_key_env": None,
                        "budget": {"money": None, "tokens": 1_000_000},
                    }
                },
                "rollout": {"concurrency": 8, "max_new_tokens": 4},
                "tasks": {"per_round": 3, "samples": 1},
                "evaluation": {"episodes": 3},
            }
        )
    )
    ran = subprocess.run(
        [sys.executable, "-m", "coevo.cli", "run", str(config)],
        capture_output=True,
        text=True,
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    run = tmp_path / "toolbox-api"
    (round_,) = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    assert round_["evolution"]["outcome"] != "off"
    assert round_["train"] is None
    rows = ReplayBuffer(run, 4, 100_000).trajectories(0, "incumbent")
    assert len(rows) == 3
    assert all(row.segments == () and row.outcome.kind == "completed" for row in rows)
    account = [json.loads(line) for line in (run / "api_calls.jsonl").read_text().splitlines()]
    assert sum(line["failed"] for line in account) == 0
    for key in ("prompt", "completion"):
        total = sum(line[f"{key}_tokens"] for line in account)
        assert total == summary["tokens"]["prompt" if key == "prompt" else "sampled"]
    assert sum(line["money"] for line in account) > 0
