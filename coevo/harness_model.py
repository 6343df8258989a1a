"""A model directory served for one `coevo harness run`: vLLM in a Ray actor, token in, token out."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import ray

from harness.events import ToolCallSpec
from harness.host import HostError, ModelReply, ModelRequest
from rollout.policy.base import ContextOverflow, EngineError, Request, Sampling
from rollout.policy.config import VLLMEngineConfig
from rollout.policy.vllm import VLLMEngine
from rollout.spec import derive_seed
from rollout.tokens import Renderer, TemplateRefusal
from rollout.tool_calls import Parsed

MAX_LENGTH = 4096
"""Tokens of prompt and answer together, or the model's own limit where that is smaller."""

MAX_NEW = 256


@asynccontextmanager
async def model_answers(
    directory: str, seed: int
) -> AsyncIterator[Callable[[ModelRequest], Awaitable[ModelReply]]]:
    """A function that answers model requests while the engine runs. Raises EngineError."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        shape = json.loads(Path(directory, "config.json").read_text(encoding="utf-8"))
        length = min(MAX_LENGTH, shape.get("max_position_embeddings", MAX_LENGTH))
        config = VLLMEngineConfig(model=directory, max_model_len=length, max_num_seqs=4)
        engine = await VLLMEngine.start(config)
        try:
            yield _Model(engine, Renderer.from_pretrained(directory), seed)
        finally:
            await engine.shutdown()
    finally:
        ray.shutdown()


class _Model:
    def __init__(self, engine: VLLMEngine, renderer: Renderer, seed: int) -> None:
        self._engine = engine
        self._renderer = renderer
        self._seed = seed
        self._calls = 0

    async def __call__(self, request: ModelRequest) -> ModelReply:
        try:
            prompt = tuple(self._renderer.prompt(request.messages, request.tools))
        except TemplateRefusal as error:
            raise HostError("context", str(error)) from error
        sampling = Sampling(
            max_tokens=min(request.max_tokens or MAX_NEW, MAX_NEW),
            seed=derive_seed(self._seed, self._calls),
            stop_token_ids=self._renderer.stop_ids,
        )
        self._calls += 1
        try:
            (sample,) = await self._engine.generate([Request(prompt, sampling)])
        except ContextOverflow as error:
            raise HostError("context", str(error)) from error
        except EngineError as error:
            raise HostError("infra", str(error)) from error
        if request.tools:
            answer = self._renderer.answer(sample.token_ids)
        else:
            answer = Parsed(self._renderer.decode(sample.token_ids))
        calls = tuple(
            ToolCallSpec(f"call{self._calls:04d}{i}", *call) for i, call in enumerate(answer.calls)
        )
        return ModelReply(
            answer.content, calls, sample.finish_reason, len(prompt), len(sample.token_ids)
        )
