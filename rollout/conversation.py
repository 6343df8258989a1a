"""How the model calls of an episode are answered: token ids through an engine, or messages through
an API. Both behind `Policy`, so that an episode knows neither."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from harness.events import ToolCallSpec
from harness.host import HostError, ModelReply, ModelRequest
from rollout.capture import TokenCapture
from rollout.lockstep import Batcher
from rollout.policy.base import (
    ChatEngine,
    ChatRequest,
    ContextOverflow,
    EngineError,
    Request,
    Sampling,
)
from rollout.spec import EpisodeSpec, derive_seed
from rollout.tokens import Renderer, TemplateRefusal
from rollout.tool_calls import Call, Parsed
from rollout.trajectory import Segment


class Conversation(Protocol):
    """The model's side of one episode; `prompt_tokens` and its like count what it cost."""

    prompt_tokens: int
    sampled_tokens: int
    model_calls: int

    async def reply(self, request: ModelRequest, max_new_tokens: int, trains: bool) -> ModelReply:
        """Raises HostError: `context` where nothing fits or can be written, `infra` otherwise."""
        ...

    def segments(self) -> tuple[Segment, ...]: ...

    def close(self) -> None:
        """The episode is over; what is still asked has nobody to answer."""
        ...


class Policy(Protocol):
    """The model that a worker's episodes act with."""

    def begin(self, slot: int, spec: EpisodeSpec) -> Conversation: ...


@dataclass(frozen=True, slots=True)
class TokenPolicy:
    """A policy engine behind a batcher: token in, token out. max_context: of the engine, tokens."""

    renderer: Renderer
    batcher: Batcher
    temperature: float
    max_context: int

    def begin(self, slot: int, spec: EpisodeSpec) -> Conversation:
        return _TokenConversation(self, slot, spec)


class _TokenConversation:
    """Keeps the tokens of everything that the policy sampled."""

    def __init__(self, policy: TokenPolicy, slot: int, spec: EpisodeSpec) -> None:
        self._policy, self._slot, self._spec = policy, slot, spec
        self._capture = TokenCapture(policy.temperature)
        self._tool_calls = 0
        self.prompt_tokens = self.sampled_tokens = self.model_calls = 0

    async def reply(self, request: ModelRequest, max_new_tokens: int, trains: bool) -> ModelReply:
        policy = self._policy
        try:
            prompt = policy.renderer.prompt(request.messages, request.tools, self._capture)
        except TemplateRefusal as error:
            raise HostError("context", f"step {request.step}: {error}") from error
        room = policy.max_context - len(prompt)
        if room < 1:
            raise HostError(
                "context",
                f"the prompt of step {request.step} has {len(prompt)} tokens; the engine's "
                f"context holds {policy.max_context}",
            )
        call = Request(
            tuple(prompt),
            Sampling(
                temperature=policy.temperature,
                max_tokens=min(max_new_tokens, room),
                seed=derive_seed(self._spec.seed, self.model_calls),
                stop_token_ids=policy.renderer.stop_ids,
            ),
            trajectory=self._spec.id,
        )
        self.model_calls += 1
        try:
            sample = await policy.batcher.generate(self._slot, call)
        except ContextOverflow as error:
            raise HostError("context", str(error)) from error
        except EngineError as error:
            raise HostError("infra", str(error)) from error
        self._capture.add(prompt, sample, trains)
        self.prompt_tokens += len(prompt)
        self.sampled_tokens += len(sample.token_ids)
        if request.tools:
            answer = policy.renderer.answer(sample.token_ids)
        else:
            answer = Parsed(policy.renderer.decode(sample.token_ids))
        calls = tuple(map(self._identified, answer.calls))
        called = calls and sample.finish_reason == "stop"
        return ModelReply(
            answer.content,
            calls,
            finish_reason="tool_calls" if called else sample.finish_reason,
            prompt_tokens=len(prompt),
            sampled_tokens=len(sample.token_ids),
        )

    def _identified(self, call: Call) -> ToolCallSpec:
        self._tool_calls += 1
        # Nine letters and digits: what Mistral's templates admit.
        return ToolCallSpec(f"call{self._tool_calls:05d}", *call)

    def segments(self) -> tuple[Segment, ...]:
        return self._capture.segments()

    def close(self) -> None:
        self._policy.batcher.drop(self._slot)


@dataclass(frozen=True, slots=True)
class ChatPolicy:
    """A hosted model. Its answers have no tokens here, so no segment: they cannot train."""

    engine: ChatEngine
    temperature: float

    def begin(self, slot: int, spec: EpisodeSpec) -> Conversation:
        return _ChatConversation(self, spec)


class _ChatConversation:
    def __init__(self, policy: ChatPolicy, spec: EpisodeSpec) -> None:
        self._policy, self._spec = policy, spec
        self.prompt_tokens = self.sampled_tokens = self.model_calls = 0

    async def reply(self, request: ModelRequest, max_new_tokens: int, trains: bool) -> ModelReply:
        sampling = Sampling(
            temperature=self._policy.temperature,
            max_tokens=max_new_tokens,
            seed=derive_seed(self._spec.seed, self.model_calls),
        )
        self.model_calls += 1
        try:
            reply = await self._policy.engine.chat(
                ChatRequest(request.messages, request.tools, sampling)
            )
        except ContextOverflow as error:
            raise HostError("context", str(error)) from error
        except EngineError as error:
            raise HostError("infra", str(error)) from error
        self.prompt_tokens += reply.prompt_tokens
        self.sampled_tokens += reply.sampled_tokens
        return reply

    def segments(self) -> tuple[Segment, ...]:
        return ()

    def close(self) -> None:
        """Nothing is open between two calls."""
