"""What the run loop may ask of the world outside: one model call, one tool call.

The worker implements `Host` (it owns the model handle, the environment, the verifier and the
keys); inside the sandbox `Host` is a pipe. A harness has no other way out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from harness.events import Message, ToolCallSpec, ToolSpec


class HostError(RuntimeError):
    """The host could not answer. `kind`: infra (never the agent's fault) | budget | deadline | context."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call. `role`: main, or a role that the bundle declares (judge, summariser, …)."""

    step: int
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    role: str = "main"
    max_tokens: int | None = None  # None: the run's own per-turn cap


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What the model said, already decoded and parsed by the host; counts in tokens."""

    content: str
    tool_calls: tuple[ToolCallSpec, ...] = ()
    finish_reason: str = "stop"  # stop | length | tool_calls
    prompt_tokens: int = 0
    sampled_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ToolRequest:
    step: int
    call_id: str
    name: str
    input: dict


@dataclass(frozen=True, slots=True)
class ToolReply:
    """`done`: the environment has ended the episode. `choices`: actions it admits next."""

    content: str
    is_error: bool = False
    choices: tuple[str, ...] = ()
    done: bool = False


class Host(Protocol):
    """Implemented by the worker (rollout.episode) and by the sandbox's pipe (harness.sandbox)."""

    async def model(self, request: ModelRequest) -> ModelReply: ...

    async def tool(self, request: ToolRequest) -> ToolReply: ...
