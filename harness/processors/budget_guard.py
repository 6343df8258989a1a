"""Budget guard (D7): tells the model what is left of its steps and tokens, and stops in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from harness.events import BeforeModel, ModelResponse
from harness.processor import Context, Interrupt, Processor
from harness.processors.last_user import append_to_last_user


class BudgetGuard(Processor):
    """Counts steps and tokens of the main model; never more than the run's own budgets allow.

    max_steps: None takes the task's. max_tokens: prompt and sampled tokens of the episode; None:
    no limit here. warn_below: the share left (0 to 1) from which on the model is told at every
    step; 1 tells always. Past either limit the run ends as truncated, before the model is asked.
    """

    kind: ClassVar[str] = "control_flow"
    singleton_group: ClassVar[str | None] = "budget_guard"
    dimension: ClassVar[str] = "D7"

    max_steps: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    warn_below: float = Field(0.5, ge=0, le=1)

    def before_model(self, event: BeforeModel, ctx: Context) -> Iterator[BeforeModel]:
        steps = self.max_steps or ctx.task.max_steps
        used = {"steps": event.step, "tokens": ctx.state.get("tokens", 0)}
        for what, limit in (("steps", steps), ("tokens", self.max_tokens)):
            if limit is None:
                continue
            left = limit - used[what]
            if left <= 0:
                raise Interrupt(f"budget_guard: {used[what]} {what} used of {limit}", "truncated")
            if left <= self.warn_below * limit:
                event = append_to_last_user(event, f"[{left} of {limit} {what} left]")
        yield event

    def after_model(self, event: ModelResponse, ctx: Context) -> Iterator[ModelResponse]:
        spent = event.prompt_tokens + event.sampled_tokens
        ctx.state["tokens"] = ctx.state.get("tokens", 0) + spent
        yield event
