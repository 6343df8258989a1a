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
from harness.trace import Trace

_MAX_BUNDLE_LINE = 1 << 30


class PipeHost:
    """A Host at the other end of a socket; calls may overlap."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.next_id = 0

    async def model(self, request: ModelRequest) -> ModelReply:
        reply = await self._ask("model", protocol.dump_model_request(request))
        return protocol.load_model_reply(reply)

    async def tool(self, request: ToolRequest) -> ToolReply:
        return protocol.load_tool_reply(
            await self._ask("tool", protocol.dump_tool_request(request))
        )

    async def _ask(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        self.next_id += 1
        id = self.next_id
        line = protocol.encode({"type": kind, "id": id, "request": request})
        future = asyncio.get_running_loop().create_future()
        self.waiting[id] = future
        self.writer.write(line)
        await self.writer.drain()
        try:
            answer = await future
        finally:
            del self.waiting[id]
        if "error" in answer:
            raise HostError(answer["error"]["kind"], answer["error"]["message"])
        reply: dict[str, Any] = answer["reply"]
        return reply

    async def listen(self) -> None:
        """Hand every reply to the call that waits for it; ends the process with the socket."""
        while line := await self.reader.readline():
            answer = protocol.decode(line)
            future = self.waiting.get(answer["id"])
            if future is not None and not future.done():
                future.set_result(answer)
        os._exit(0)  # the worker is gone: nobody is left to report to


def serve(fd: int, *, landlock_abi: int, seccomp: bool) -> None:
    """Run the one episode of this process over the socket `fd`."""
    asyncio.run(_episode(fd, landlock_abi, seccomp))


async def _episode(fd: int, landlock_abi: int, seccomp: bool) -> None:
    reader, writer = await asyncio.open_unix_connection(
        sock=socket.socket(fileno=fd), limit=_MAX_BUNDLE_LINE
    )
    writer.write(protocol.encode({"type": "ready", "landlock": landlock_abi, "seccomp": seccomp}))
    bundle_line = await reader.readline()
    start_line = await reader.readline()
    if not start_line:
        return
    task, observation, seed, budgets, level = protocol.load_start(protocol.decode(start_line))
    trace = Trace("", level)
    random.seed(seed)
    try:
        bundle = protocol.load_bundle(protocol.decode(bundle_line))
        bound = build(bundle, allow_own_code=True, traced=level == "full")
        problems = missing_tools(bound, [tool.name for tool in task.tools])
        if problems:
            raise BuildError(problems)
        pipeline = Pipeline(bound)
    except (BundleError, PipelineError) as error:
        result = RunResult("harness_error", f"the bundle cannot run: {error}", 0, "")
    else:
        host = PipeHost(reader, writer)
        listener = asyncio.create_task(host.listen())
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
        listener.cancel()
    writer.write(
        protocol.encode(
            {
                "type": "done",
                "result": protocol.dump_result(result),
                "harness": trace.harness_json() if level == "full" else None,
            }
        )
    )
    await writer.drain()
    # Threads or tasks that bundle code left behind get no more time.
    while writer.transport.get_write_buffer_size():
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
    async def model(self, request: ModelRequest) -> ModelReply:
        return ModelReply("look")

    async def tool(self, request: ToolRequest) -> ToolReply:
        return ToolReply("a room", choices=("look",))


def rehearse() -> None:
    """Run a tiny episode of our own in this process: what it imports and caches, forks inherit."""
    sample = Bundle((Component("own", "processor", "own.py:Own"),), {"own.py": File(_SAMPLE)})
    sent = protocol.encode(protocol.dump_bundle(sample))
    bundle = protocol.load_bundle(protocol.decode(sent))
    task = TaskView("look", "rehearsal", action_tool="act")

    async def episode() -> RunResult:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            _, writer = await asyncio.open_unix_connection(sock=ours)
            writer.close()
        return await run(
            Pipeline(build(bundle, allow_own_code=True)),
            task,
            ToolReply("a room"),
            _Still(),
            seed=0,
            budgets=Budgets(max_steps=2),
            trace=Trace("", "full"),
        )

    result = asyncio.run(episode())
    if result.status != "truncated":
        raise RuntimeError(f"the rehearsal of the harness process ended as {result}")
