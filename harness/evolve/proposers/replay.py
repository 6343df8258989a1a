"""A recorded episode played back through a bundle, in the sandbox: does it run, and what would the
model have read?

The model answers with the recorded actions and the environment with the recorded observations, so
nothing is spent. It shows that code loads and runs, and where the edit reaches the model; how the
task would end it cannot show.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.bundle import Bundle
from harness.events import Message, TaskView, ToolSpec
from harness.evolve.parts import EvolutionInfraError
from harness.evolve.records import Episode, TraceStep
from harness.host import ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.metered import Budgets
from harness.sandbox import Limits, Sandbox
from harness.sandbox.containment import SandboxUnavailable
from harness.shorten import head_and_tail

MAX_STEPS = 24
LIMITS = Limits(memory_mb=512, cpu_s=30, silent_s=10.0, wall_s=60.0, calls=400)
WALL_S = 60.0
ACT = "act"
_COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}}


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a replay ended. inputs: what the main model read at each call, as text."""

    status: str
    reason: str
    inputs: tuple[str, ...]

    @property
    def ran(self) -> bool:
        """Whether the harness itself did not fail."""
        return self.status in ("completed", "truncated", "agent_error")


class _Recording:
    """A Host that answers from a trace. Calls past its end get the last step again."""

    def __init__(self, steps: Sequence[TraceStep]) -> None:
        self.steps = steps
        self.inputs: list[str] = []
        self.carried_out = 0

    async def model(self, request: ModelRequest) -> ModelReply:
        read = sum(len(message.content) for message in request.messages) // 4
        if request.role != "main":
            return ModelReply("PASS", prompt_tokens=read, sampled_tokens=1)
        self.inputs.append("\n".join(map(_shown, request.messages)))
        said = self.steps[min(self.carried_out, len(self.steps) - 1)].action
        return ModelReply(said, prompt_tokens=read, sampled_tokens=len(said) // 4 + 1)

    async def tool(self, request: ToolRequest) -> ToolReply:
        at = min(self.carried_out, len(self.steps) - 1)
        self.carried_out += 1
        step = self.steps[at]
        return ToolReply(step.observation, "invalid" in step.flags, done=at == len(self.steps) - 1)


async def replay(
    sandbox: Sandbox, bundle: Bundle, episode: Episode, tools: Iterable[str] = ()
) -> Replayed:
    """Play `episode` (its first MAX_STEPS steps) through `bundle`. tools: names that the task offers.

    Raises EvolutionInfraError where no harness process can be had."""
    steps = episode.trace[:MAX_STEPS] or (TraceStep(0, "look", episode.instruction),)
    host = _Recording(steps)
    needed = {
        name.removeprefix("tool:")
        for item in bundle.components
        for name in item.needs
        if name.startswith("tool:")
    }
    names = sorted({*tools, *needed} - {ACT})
    task = TaskView(
        episode.instruction,
        "replay",
        (ToolSpec(ACT, "", _COMMAND), *(ToolSpec(name, "") for name in names)),
        ACT,
        len(steps),
    )
    budgets = Budgets(max_steps=2 * len(steps), wall_s=WALL_S)
    try:
        ran = await sandbox.run(
            bundle, task, ToolReply(episode.instruction), host, seed=episode.seed,
            budgets=budgets, limits=LIMITS, trace_level="off",
        )  # fmt: skip
    except SandboxUnavailable as error:
        raise EvolutionInfraError(f"replay of {bundle.id[:12]}: {error}") from error
    result = ran.result
    if result.status == "infra_error":
        raise EvolutionInfraError(f"replay of {bundle.id[:12]}: {result.reason}")
    return Replayed(result.status, result.reason, tuple(host.inputs))


def compared(before: Replayed, after: Replayed, limit: int = 2400) -> tuple[int, str]:
    """How many model calls would have read something else, and the first such difference."""
    count = abs(len(before.inputs) - len(after.inputs))
    first = ""
    for number, (old, new) in enumerate(zip(before.inputs, after.inputs, strict=False), 1):
        if old == new:
            continue
        count += 1
        if not first:
            lines = difflib.unified_diff(
                old.split("\n"), new.split("\n"), "before", "now", n=1, lineterm=""
            )
            first = f"model call {number}:\n" + head_and_tail("\n".join(lines), limit)
    return count, first


def _shown(message: Message) -> str:
    calls = "".join(f"\n  calls {call.name}({dict(call.input)})" for call in message.tool_calls)
    return f"{message.role}: {message.content}{calls}"
