"""The engine protocols: token ids in and out with log-probs, or chat messages in and text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from harness.events import Message, ToolSpec
from harness.host import ModelReply
from rollout.policy.broadcast import Broadcast


class EngineError(RuntimeError):
    """The engine could not answer: always an infrastructure error, never the agent's."""


class EngineDied(EngineError):
    """The engine's process is gone; whatever is asked of it later fails, too."""


class EngineAsleep(EngineError):
    """The engine has given its GPU memory away; it is well, and an update wakes it."""


class ContextOverflow(ValueError):
    """The prompt leaves no room for a new token within the engine's context."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling of one request. Training needs top_p 1, top_k -1, min_p 0 (renormalised log-probs
    bias the ratio); `seed` is unique per request and derived from the episode."""

    temperature: float = 1.0
    max_tokens: int = 16
    seed: int = 0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """`trajectory`: whose request it is; one trajectory stays on one replica, where its prefix is."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    trajectory: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """token_ids include the stop token; logprobs are log softmax(logits / T) of each, float32."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    version: int
    cached_tokens: int = 0


class PolicyEngine(Protocol):
    """One served model. Batches keep their order: the i-th sample answers the i-th request."""

    async def ready(self) -> None:
        """Load the model; nothing else is asked before. Raises EngineError."""
        ...

    async def generate(self, requests: Sequence[Request]) -> list[Sample]: ...

    async def update(self, weights: str | Broadcast, version: int, fingerprint: str) -> None:
        """Load the safetensors file or adapter directory, or receive the broadcast; stamp `version`,
        drop cached prefixes.

        Raises EngineError when the loaded weights' fingerprint differs."""
        ...

    async def sleep(self) -> None:
        """Give the GPU's memory away; requests are refused until the next `update`."""
        ...

    async def fingerprint(self) -> str: ...

    async def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs (temperature 1) of tokens 1… of each sequence, for the probe after an update."""
        ...

    async def shutdown(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Of `sampling`, a chat engine uses temperature, max_tokens, top_p and, where it can, the seed."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    sampling: Sampling


class ChatEngine(Protocol):
    """A model without token ids or log-probs: good to act with, never to train."""

    async def chat(self, request: ChatRequest) -> ModelReply:
        """Raises ContextOverflow and EngineError."""
        ...
