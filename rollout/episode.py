"""One episode: a task, a harness and a policy meet; the result is one Trajectory.

The worker side of the trust boundary: it holds the environment, the verifier and the model
handle, captures tokens and log-probs itself, and answers the harness process's two questions.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import ValidationError

from harness.bundle import Bundle
from harness.events import TaskView
from harness.host import Host, HostError, ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.metered import Budgets
from harness.processors.token_capture import trainable_roles
from harness.runloop import RunResult
from harness.sandbox.launcher import Ran
from harness.trace import Level
from rollout.envs.base import EnvError, Environment, Observation, Session
from rollout.spec import EpisodeSpec
from rollout.trajectory import Cost, Outcome, Trajectory

if TYPE_CHECKING:  # it imports transformers, which those who only schedule episodes do not need
    from rollout.conversation import Conversation, Policy


class Runner(Protocol):
    """`Sandbox.run`, or `run_inprocess` for trusted bundles."""

    def __call__(
        self,
        bundle: Bundle,
        task: TaskView,
        observation: ToolReply,
        host: Host,
        *,
        seed: int,
        budgets: Budgets,
        trace_level: Level,
        run_id: str,
    ) -> Awaitable[Ran]: ...


VOID = frozenset({"infra_error", "harness_error", "contract_violation"})
"""Outcomes whose score is not read: the environment's state says nothing about the agent."""


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """A trajectory and its trace (`harness.trace.Trace.to_json`)."""

    trajectory: Trajectory
    trace: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of every episode of a worker, counted as the agent's own budgets."""

    max_new_tokens: int = 16
    max_steps: int | None = None  # None: the task's own
    max_tokens: int | None = None
    wall_s: float | None = None
    trace: Level = "full"


class EpisodeHost:
    """Answers one harness process: model calls by the conversation, tool calls by the environment.

    trainable: roles whose samples may carry loss, None for all. A call of another role is sampled
    and counted like any, and its tokens are context at most.
    """

    def __init__(
        self,
        conversation: Conversation,
        session: Session,
        limits: Limits,
        trainable: frozenset[str] | None = None,
    ) -> None:
        self.conversation = conversation
        self._session = session
        self._limits = limits
        self._trainable = trainable

    async def model(self, request: ModelRequest) -> ModelReply:
        limit = self._limits.max_new_tokens
        trains = self._trainable is None or request.role in self._trainable
        return await self.conversation.reply(
            request, min(request.max_tokens or limit, limit), trains
        )

    async def tool(self, request: ToolRequest) -> ToolReply:
        try:
            return reply(self._session.step(request.name, request.input))
        except EnvError as error:
            raise HostError("infra", f"environment: {error}") from error


def reply(observation: Observation) -> ToolReply:
    """An observation as the harness sees it."""
    return ToolReply(observation.text, observation.is_error, observation.choices, observation.done)


async def run_episode(
    slot: int,
    spec: EpisodeSpec,
    *,
    env: Environment,
    bundle: Bundle,
    runner: Runner,
    policy: Policy,
    limits: Limits,
    clock: Callable[[], float] = time.monotonic,
) -> EpisodeResult:
    """Roll one episode out in `slot` of the worker. Failures become outcomes; nothing the harness does is raised here."""
    started = clock()
    try:
        trainable = trainable_roles(bundle)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        result = RunResult(
            "harness_error", f"the bundle cannot run: token_capture: {problems}", 0, ""
        )
        return EpisodeResult(trajectory_of(spec, result, "", None, None, clock() - started))
    try:
        session = env.open(spec.task, spec.seed)
        first = session.reset()
    except EnvError as error:
        result = RunResult("infra_error", f"environment: {error}", 0, "")
        return EpisodeResult(trajectory_of(spec, result, "", None, None, clock() - started))
    conversation = policy.begin(slot, spec)
    host = EpisodeHost(conversation, session, limits, trainable)
    budgets = Budgets(
        max_steps=limits.max_steps or spec.task.view.max_steps,
        max_tokens=limits.max_tokens,
        wall_s=limits.wall_s,
    )
    try:
        ran = await runner(
            bundle,
            spec.task.view,
            reply(first),
            host,
            seed=spec.seed,
            budgets=budgets,
            trace_level=limits.trace,
            run_id=spec.id,
        )
        trajectory = trajectory_of(
            spec, ran.result, ran.level, conversation, session, clock() - started
        )
    finally:
        conversation.close()
        session.close()
    return EpisodeResult(trajectory, ran.trace or {})


def trajectory_of(
    spec: EpisodeSpec,
    result: RunResult,
    level: str,
    said: Conversation | None,
    session: Session | None,
    wall_s: float,
) -> Trajectory:
    outcome = Outcome(result.status, result.reason)
    reward, success, detail = 0.0, False, {}
    if session is not None and result.status not in VOID:
        try:
            score = session.score()
            reward, success, detail = score.reward, score.success, dict(score.detail)
        except EnvError as error:
            outcome = Outcome("infra_error", f"verifier: {error}")
    return Trajectory(
        id=spec.id,
        task_id=spec.task.id,
        round=spec.round,
        role=spec.role,
        harness_id=spec.harness_id,
        policy_version=spec.policy_version,
        seed=spec.seed,
        outcome=outcome,
        reward=reward,
        success=success,
        steps=result.steps,
        segments=said.segments() if said else (),
        cost=Cost(said.prompt_tokens, said.sampled_tokens, said.model_calls, wall_s)
        if said
        else Cost(wall_s=wall_s),
        detail=detail,
        features=dict(spec.task.features),
        sandbox=level,
    )
