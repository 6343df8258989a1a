"""The policy engine protocol: prompt token ids in, sampled ids and behaviour log-probs out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


class EngineError(RuntimeError):
    """The engine could not answer: always an infrastructure error, never the agent's."""


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
    prompt_ids: tuple[int, ...]
    sampling: Sampling


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

    async def generate(self, requests: Sequence[Request]) -> list[Sample]: ...

    async def update(self, weights: str, version: int, fingerprint: str) -> None:
        """Load the safetensors file `weights`, stamp `version`, drop cached prefixes.

        Raises EngineError when the loaded weights' fingerprint differs."""
        ...

    async def fingerprint(self) -> str: ...

    async def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs (temperature 1) of tokens 1… of each sequence, for the probe after an update."""
        ...
