"""An episode in the worker: what of its samples may train."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tiny_tokenizer import tokenizer

from harness.bundle import Bundle
from harness.component import Component
from harness.events import TaskView, ToolSpec
from harness.sandbox.inprocess import run_inprocess
from rollout.conversation import TokenPolicy
from rollout.envs.base import Observation, Score
from rollout.episode import EpisodeResult, Limits, run_episode
from rollout.lockstep import Immediate
from rollout.policy.scripted import ScriptedEngine
from rollout.spec import EpisodeSpec
from rollout.task import Split, Task
from rollout.tokens import Renderer

VIEW = TaskView("find the lamp", "hall", tools=(ToolSpec("act", "acts"),), action_tool="act")
TASK = Task("hall/0", "hall", "evolve", VIEW)
PLAN = Component("plan", "control_flow", "harness.processors.planning:Planning")
RENDERER = Renderer(tokenizer())
LOOK, FIRST = RENDERER.encode("look<|im_end|>"), RENDERER.encode("first desk 1<|im_end|>")


class Hall:
    """An environment, and its one session: every action is answered, the second ends it."""

    name = "hall"
    thread_safe = True

    def __init__(self) -> None:
        self.steps = 0
        self.closed = False

    def tasks(self, split: Split) -> Sequence[Task]:
        return [TASK]

    def open(self, task: Task, seed: int) -> Hall:
        return self

    def reset(self) -> Observation:
        return Observation("A hall.")

    def step(self, name: str, input: Mapping[str, Any]) -> Observation:
        self.steps += 1
        return Observation("A desk.", done=self.steps == 2)

    def score(self) -> Score:
        return Score(1.0, True)

    def close(self) -> None:
        self.closed = True


def roll(*components: Component) -> EpisodeResult:
    """Planner calls are answered with FIRST, the agent's turns with LOOK."""
    asked = RENDERER.encode("numbered plan")

    def script(prompt: tuple[int, ...]) -> list[int]:
        text = RENDERER.decode(prompt)
        return FIRST if RENDERER.decode(asked) in text else LOOK

    async def one() -> EpisodeResult:
        batcher = Immediate(ScriptedEngine(script))
        batcher.enter(0)
        return await run_episode(
            0,
            EpisodeSpec("e", TASK, "h", "incumbent", 0, 0, 7),
            env=Hall(),
            bundle=Bundle(components),
            runner=run_inprocess,
            policy=TokenPolicy(RENDERER, batcher, 1.0, 2048),
            limits=Limits(max_new_tokens=32, max_steps=5),
        )

    return asyncio.run(one())


def trained(result: EpisodeResult) -> list[int]:
    return [int(i) for s in result.trajectory.segments for i in s.token_ids[s.loss_mask]]


def mark(*roles: str) -> Component:
    params = {"roles": list(roles)}
    return Component("mark", "config", "harness.processors.token_capture:TokenCapture", params)


def test_every_role_trains_where_the_bundle_says_nothing() -> None:
    result = roll(PLAN)
    assert result.trajectory.outcome.kind == "completed"
    assert sorted(trained(result)) == sorted([*FIRST, *LOOK, *LOOK])


def test_only_the_roles_of_the_capture_mark_train_and_all_are_paid_for() -> None:
    all_, main = roll(PLAN), roll(PLAN, mark("main"))
    assert trained(main) == [*LOOK, *LOOK]
    assert trained(roll(PLAN, mark("planner"))) == FIRST
    cost = main.trajectory.cost
    assert cost.model_calls == 3
    assert cost.sampled_tokens == len(FIRST) + 2 * len(LOOK)
    assert cost.prompt_tokens == all_.trajectory.cost.prompt_tokens


def test_a_capture_mark_that_does_not_build_is_an_error_of_the_harness() -> None:
    outcome = roll(mark()).trajectory.outcome
    assert outcome.kind == "harness_error"
    assert "token_capture: roles" in outcome.reason
