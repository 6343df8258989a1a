"""Settings of a rollout; importing this pulls neither Ray nor vLLM nor torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.sandbox.containment import MAX_SLOTS
from rollout.tool_calls import ParserName, TemplateName


class EnvironmentConfig(BaseModel):
    """name: of `rollout.envs.make_env`; options: its keyword arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "household"
    options: dict[str, Any] = Field(default_factory=dict)


class RolloutConfig(BaseModel):
    """How episodes are run.

    workers: Ray actors, each running `concurrency` episodes at once. scheduling: `lockstep` asks
    the engine once for all live episodes of a worker (reproducible to the bit with a serial
    engine), `continuous` asks for each episode as it comes. sandbox: isolation of the harness
    process; `auto` takes the strongest that the machine has and refuses where there is none.
    tool_parser: of the tool calls in sampled text; `auto` fits the model's chat template.
    template: `model` is the model's own chat template; `plain` writes a transcript, for base models.
    template_options: passed to the chat template, for example {enable_thinking: false}.
    wall_s: wall time that is part of the task (an episode past it is truncated); None: no such budget.
    A hung harness process, tool or engine is ended by limits of its own. episode_deadline_s: wall
    time past which an episode is an infrastructure error, its harness process killed; None: no
    such deadline. worker_deadline_s: a worker that gives no sign of life for so long is killed and
    replaced. retries: how often an episode that ended in an infrastructure error is issued again.
    min_coverage: share of episodes that must be scored, else the phase stops with the reason.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int = Field(1, ge=1)
    concurrency: int = Field(32, ge=1, le=MAX_SLOTS)
    scheduling: Literal["lockstep", "continuous"] = "lockstep"
    sandbox: Literal["auto", "bubblewrap", "landlock", "unsafe_local"] = "auto"
    temperature: float = Field(1.0, gt=0)
    max_new_tokens: int = Field(16, ge=1)
    max_context: int = Field(1024, ge=32)
    tool_parser: ParserName = "auto"
    template: TemplateName = "model"
    template_options: dict[str, Any] = Field(default_factory=dict)
    max_steps: int | None = Field(None, ge=1)
    wall_s: float | None = Field(None, gt=0)
    episode_deadline_s: float | None = Field(None, gt=0)
    worker_deadline_s: float = Field(300.0, gt=0)
    retries: int = Field(2, ge=0)
    min_coverage: float = Field(0.9, ge=0, le=1)
