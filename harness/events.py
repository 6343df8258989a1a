"""The eight hooks' events and the messages that they carry: frozen records, nothing else.

Source: HarnessX §3 (hook table). An event is immutable; a processor changes one by yielding
`dataclasses.replace(event, ...)`, and `pipeline` checks after every call that only the fields
its hook may change differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

EMPTY: Mapping[str, Any] = MappingProxyType({})

HOOKS = (
    "task_start",
    "step_start",
    "before_model",
    "after_model",
    "before_tool",
    "after_tool",
    "step_end",
    "task_end",
)


@dataclass(frozen=True, slots=True)
class ToolCallSpec:
    """A tool call that the model asked for: `name` with JSON `input`, answered under `call_id`."""

    call_id: str
    name: str
    input: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message.

    `choices` are the actions that the environment admits after this (user or tool) message, in
    its own order. They are data, not text: the model sees only `content`, so a processor that
    wants them seen (a menu, say) renders them.
    """

    role: str  # system | user | assistant | tool
    content: str
    choices: tuple[str, ...] = ()
    tool_calls: tuple[ToolCallSpec, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that the model may call: JSON-schema `parameters`, as function-calling APIs take it."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class TaskView:
    """What a harness may see of a task: never its id, its answer or its verifier.

    `action_tool`: for text-action environments, the tool that a plain model answer is sent to as
    `{"command": answer}`; None where the model must call tools.
    """

    instruction: str
    environment: str
    tools: tuple[ToolSpec, ...] = ()
    action_tool: str | None = None
    max_steps: int = 30


@dataclass(frozen=True, slots=True)
class TaskStart:
    """hook task_start; may change: system_prompt."""

    task: TaskView
    system_prompt: str = ""


@dataclass(frozen=True, slots=True)
class StepStart:
    """hook step_start; may change: history (structural edits: drop, merge, summarise)."""

    step: int
    history: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class BeforeModel:
    """hook before_model; may change the last user message, and may append one user message."""

    step: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """hook after_model; may change: content, tool_calls."""

    step: int
    content: str
    tool_calls: tuple[ToolCallSpec, ...] = ()
    finish_reason: str = "stop"  # stop | length | tool_calls
    prompt_tokens: int = 0
    sampled_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """hook before_tool; may change: input, approved. `approved=False` blocks the call like an intercept."""

    step: int
    call_id: str
    name: str
    input: Mapping[str, Any]
    approved: bool = True


@dataclass(frozen=True, slots=True)
class ToolResult:
    """hook after_tool; may change the result: content, is_error, choices. `done` is the environment's."""

    step: int
    call_id: str
    name: str
    content: str
    is_error: bool = False
    choices: tuple[str, ...] = ()
    done: bool = False


@dataclass(frozen=True, slots=True)
class StepEnd:
    """hook step_end; read-only."""

    step: int
    done: bool
    history: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """hook task_end; read-only. `status` as in `runloop.RunResult`."""

    step: int
    status: str
    reason: str
    output: str


Event = (
    TaskStart | StepStart | BeforeModel | ModelResponse | ToolCall | ToolResult | StepEnd | TaskEnd
)

EVENT_OF_HOOK: Mapping[str, type] = MappingProxyType(
    dict(
        zip(
            HOOKS,
            (
                TaskStart,
                StepStart,
                BeforeModel,
                ModelResponse,
                ToolCall,
                ToolResult,
                StepEnd,
                TaskEnd,
            ),
            strict=True,
        )
    )
)
