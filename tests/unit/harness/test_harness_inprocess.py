"""Running a bundle of built-in parts in this process."""

from __future__ import annotations

import asyncio

import pytest

from harness.build import BuildError
from harness.bundle import Bundle
from harness.component import Component, File
from harness.events import TaskView
from harness.host import ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.metered import Budgets
from harness.sandbox import run_inprocess

MENU = Component("menu", "output_plumbing", "harness.processors.numbered_menu:NumberedMenu")
TASK = TaskView("find it", "world", action_tool="act")


class First:
    """A model that always picks the first label."""

    async def model(self, request: ModelRequest) -> ModelReply:
        return ModelReply("[0]")

    async def tool(self, request: ToolRequest) -> ToolReply:
        return ToolReply("you won", done=request.input["command"] == "go")


def go(bundle: Bundle) -> object:
    return asyncio.run(
        run_inprocess(
            bundle,
            TASK,
            ToolReply("hi", choices=("go",)),
            First(),
            seed=1,
            budgets=Budgets(max_steps=3),
            trace_level="full",
            run_id="r",
        )
    )


def test_a_bundle_of_built_in_parts_runs_and_says_that_it_was_not_isolated() -> None:
    result, trace, level = go(Bundle((MENU,)))  # type: ignore[misc]
    assert (result.status, result.steps, level) == ("completed", 1, "in_process")
    assert [r[1:4] for r in trace["harness"]] == [
        ["before_model", "menu", "transform"],
        ["after_model", "menu", "transform"],
    ]


def test_code_of_the_bundle_itself_is_refused_here() -> None:
    bundle = Bundle((Component("own", "processor", "own.py:Own"),), {"own.py": File(b"")})
    with pytest.raises(BuildError, match="sandboxed"):
        go(bundle)


def test_a_tool_that_the_task_lacks_is_a_harness_error() -> None:
    needy = Component("menu", MENU.kind, MENU.entrypoint, needs=("tool:search",))
    result, _, _ = go(Bundle((needy,)))  # type: ignore[misc]
    assert result.status == "harness_error"
    assert "'search'" in result.reason
