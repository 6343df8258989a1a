"""Bundles made from a few lines of hostile code, and a bench to run them on."""

from __future__ import annotations

import asyncio
import textwrap
from dataclasses import dataclass, field
from typing import Any

from harness.bundle import Bundle
from harness.component import Component, File
from harness.events import TaskView
from harness.host import ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.metered import Budgets
from harness.sandbox import Limits, Ran, Sandbox

TASK = TaskView("find it", "world", action_tool="act")


@dataclass
class Echo:
    """A host whose model answers `go` and whose environment ends at the second action."""

    asked: list[ModelRequest] = field(default_factory=list)
    called: list[ToolRequest] = field(default_factory=list)

    async def model(self, request: ModelRequest) -> ModelReply:
        self.asked.append(request)
        return ModelReply("go", prompt_tokens=3, sampled_tokens=1)

    async def tool(self, request: ToolRequest) -> ToolReply:
        self.called.append(request)
        return ToolReply("a room", choices=("go",), done=len(self.called) >= 2)


def own(source: str) -> Bundle:
    """A bundle with one processor class `Own`, in a file of the bundle."""
    return Bundle(
        (Component("own", "processor", "parts/own.py:Own"),),
        {"parts/own.py": File(textwrap.dedent(source).encode())},
    )


def at(hook: str, body: str) -> Bundle:
    """A bundle whose processor runs `body` (which yields) at `hook`."""
    return own(
        "import os, sys, time, json, socket, dataclasses\n"
        "from harness.processor import Processor, Interrupt\n"
        "class Own(Processor):\n"
        f"    def {hook}(self, event, ctx):\n" + textwrap.indent(textwrap.dedent(body), " " * 8)
    )


def saying(expression: str) -> Bundle:
    """A bundle that shows the model repr(expression), or the exception that it raised."""
    return at(
        "before_model",
        f"""
        import ctypes, subprocess, threading, signal
        try:
            said = repr({expression})
        except BaseException as error:
            said = f"{{type(error).__name__}}: {{error}}"
        last = dataclasses.replace(event.messages[-1], content=said)
        yield dataclasses.replace(event, messages=(*event.messages[:-1], last))
        """,
    )


class Bench:
    """A sandbox with its event loop, for tests that are plain functions."""

    def __init__(self, sandbox: Sandbox, runner: asyncio.Runner) -> None:
        self.sandbox = sandbox
        self.runner = runner

    async def run(self, bundle: Bundle, host: Any = None, **options: Any) -> Ran:
        return await self.sandbox.run(
            bundle,
            options.pop("task", TASK),
            ToolReply("hello", choices=("go",)),
            host or Echo(),
            seed=options.pop("seed", 1),
            budgets=options.pop("budgets", Budgets(max_steps=3)),
            limits=options.pop("limits", Limits(silent_s=20.0)),
            **options,
        )

    def episode(self, bundle: Bundle, host: Any = None, **options: Any) -> Ran:
        return self.runner.run(self.run(bundle, host, **options))

    def heard(self, expression: str) -> str:
        """What a processor of an episode got for `expression`."""
        host = Echo()
        ran = self.episode(saying(expression), host)
        assert ran.result.status == "completed", ran.result
        return host.asked[0].messages[-1].content

    def still_works(self) -> None:
        """The next episode, of a harmless bundle, runs as if nothing had been."""
        ran = self.episode(at("step_start", "yield event"))
        assert (ran.result.status, ran.result.steps) == ("completed", 2), ran.result
