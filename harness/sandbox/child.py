"""The harness process: reads the bundle from its socket, runs one episode, sends the result.

Confined by the zygote before any of this runs; only here is code of a bundle executed.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from typing import Any

from harness.build import BuildError, build, missing_tools
from harness.bundle import Bundle, BundleError
from harness.component import Component, File
from harness.events import TaskView
from harness.host import HostError, ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.metered import Budgets
from harness.pipeline import Pipeline, PipelineError
from harness.runloop import RunResult, run
from harness.sandbox import protocol
from harness.sandbox.lines import Lines
from harness.sandbox.prompts import PromptWriter
from harness.trace import Trace

_MAX_BUNDLE_LINE = 1 << 30


class PipeHost:
    """A Host at the other end of a socket; calls may overlap."""

    def __init__(self) -> None:
        # Ends the process with the socket: where the worker is gone nobody is left to report to.
        self.lines = Lines(self._line, lambda error: os._exit(0), _MAX_BUNDLE_LINE)
        self.opening: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0
        self._prompts = PromptWriter()

    async def model(self, request: ModelRequest) -> ModelReply:
        asked = self._ask("model", self._prompts.dump(request))
        self._prompts.sent(request)
        return protocol.load_model_reply(await self._reply(asked))

    async def tool(self, request: ToolRequest) -> ToolReply:
        asked = self._ask("tool", protocol.dump_tool_request(request))
        return protocol.load_tool_reply(await self._reply(asked))

    def _ask(self, kind: str, request: dict[str, Any]) -> int:
        self._next += 1
        self.lines.send(protocol.encode({"type": kind, "id": self._next, "request": request}))
        return self._next

    async def _reply(self, id: int) -> dict[str, Any]:
        future = self._waiting[id] = asyncio.get_running_loop().create_future()
        try:
            answer = await future
        finally:
            del self._waiting[id]
        if "error" in answer:
            raise HostError(answer["error"]["kind"], answer["error"]["message"])
        reply: dict[str, Any] = answer["reply"]
        return reply

    def _line(self, line: bytes) -> None:
        """Hand a reply to the call that waits for it."""
        message = protocol.decode(line)
        if "id" not in message:
            self.opening.put_nowait(message)
            return
        future = self._waiting.get(message["id"])
        if future is not None and not future.done():
            future.set_result(message)


def serve(fd: int, *, landlock_abi: int, seccomp: bool) -> None:
    """Run the one episode of this process over the socket `fd`."""
    asyncio.run(_episode(fd, landlock_abi, seccomp))


async def _episode(fd: int, landlock_abi: int, seccomp: bool) -> None:
    host = PipeHost()
    await host.lines.attach(socket.socket(fileno=fd))
    host.lines.send(
        protocol.encode({"type": "ready", "landlock": landlock_abi, "seccomp": seccomp})
    )
    record = await host.opening.get()
    # What a module draws while it is imported depends on the bundle alone: it may be loaded before
    # its episode is known.
    random.seed(0)
    problem, bound, bundle = "", [], Bundle()
    try:
        bundle = protocol.load_bundle(record)
        bound = build(bundle, allow_own_code=True, traced=record["traced"])
        pipeline = Pipeline(bound)
    except (BundleError, PipelineError) as error:
        problem = str(error)
    for _ in range(2):  # the loop looks at the socket in between
        await asyncio.sleep(0)
    if host.opening.empty():  # made ahead of its episode
        await _rehearsal(Pipeline([]), steps=2)
    task, observation, seed, budgets, level = protocol.load_start(await host.opening.get())
    random.seed(seed)
    trace = Trace("", level)
    if not problem:
        missing = missing_tools(bound, [tool.name for tool in task.tools])
        problem = str(BuildError(missing)) if missing else ""
    if problem:
        result = RunResult("harness_error", f"the bundle cannot run: {problem}", 0, "")
    else:
        result = await run(
            pipeline,
            task,
            observation,
            host,
            seed=seed,
            budgets=budgets,
            files=bundle.contents(),
            trace=trace,
        )
    host.lines.send(
        protocol.encode(
            {
                "type": "done",
                "result": protocol.dump_result(result),
                "harness": trace.harness_json() if level == "full" else None,
            }
        )
    )
    # Threads or tasks that bundle code left behind get no more time.
    while host.lines.unsent:
        await asyncio.sleep(0)
    os._exit(0)


_SAMPLE = b"""
from dataclasses import replace
from harness.processor import Processor


class Own(Processor):
    limit: int = 3

    def before_model(self, event, ctx):
        yield replace(event, messages=event.messages)
"""


class _Still:
    """A host that answers at once, through every form that a message takes on its way."""

    def __init__(self) -> None:
        self.prompts = PromptWriter()

    async def model(self, request: ModelRequest) -> ModelReply:
        _there(self.prompts.dump(request))
        self.prompts.sent(request)
        return protocol.load_model_reply(_there(protocol.dump_model_reply(ModelReply("look"))))

    async def tool(self, request: ToolRequest) -> ToolReply:
        _there(protocol.dump_tool_request(request))
        reply = ToolReply("a room", choices=("look",))
        return protocol.load_tool_reply(_there(protocol.dump_tool_reply(reply)))


def _there(record: dict[str, Any]) -> dict[str, Any]:
    sent = protocol.encode({"id": 1, "reply": record})
    reply: dict[str, Any] = protocol.decode(sent[:-1])["reply"]
    return reply


async def _rehearsal(pipeline: Pipeline, steps: int) -> RunResult:
    """An episode of our own. What it imports and caches is ready for the next one, and so are the
    pages of memory that it writes: after a fork the first write to each costs a copy."""
    task = TaskView("look", "rehearsal", action_tool="act")
    start = protocol.dump_start(task, ToolReply("a room"), 0, Budgets(max_steps=steps), "full")
    task, observation, seed, budgets, level = protocol.load_start(_there(start))
    result = await run(
        pipeline, task, observation, _Still(), seed=seed, budgets=budgets, trace=Trace("", level)
    )
    _there(protocol.dump_result(result))
    return result


def rehearse() -> None:
    """Run a tiny bundle of our own in this process, from which others are forked."""
    sample = Bundle((Component("own", "processor", "own.py:Own"),), {"own.py": File(_SAMPLE)})
    bundle = protocol.load_bundle(_there(protocol.dump_bundle(sample)))

    async def episode() -> RunResult:
        ours, theirs = socket.socketpair()
        with theirs:
            host = PipeHost()
            await host.lines.attach(ours)
            host.lines.close()
        return await _rehearsal(Pipeline(build(bundle, allow_own_code=True)), steps=20)

    result = asyncio.run(episode())
    if result.status != "truncated":
        raise RuntimeError(f"the rehearsal of the harness process ended as {result}")
