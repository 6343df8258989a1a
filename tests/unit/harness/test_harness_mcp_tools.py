"""MCP tools against a real server of the official SDK: in this process, and as a process of its own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="needs the optional extra [mcp]")

from mcp import StdioServerParameters
from mcp.server.mcpserver import MCPServer

from harness.tools.mcp import mcp_tools
from harness.tools.registry import ToolRegistry

SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("sums")


@server.tool()
def add(a: int, b: int) -> str:
    "Adds two numbers."
    return str(a + b)


@server.tool()
def fail() -> str:
    raise ValueError("not today")


if __name__ == "__main__":
    server.run()
"""


def server() -> MCPServer:
    namespace: dict[str, object] = {"__name__": "sums"}
    exec(SERVER, namespace)
    found = namespace["server"]
    assert isinstance(found, MCPServer)
    return found


async def answers(where: object) -> list[tuple[str, bool]]:
    async with mcp_tools(where, prefix="sums") as tools:
        registry = ToolRegistry(tools)
        assert [spec.name for spec in registry.specs] == ["sums_add", "sums_fail"]
        add = registry.specs[0]
        assert add.description == "Adds two numbers."
        assert add.parameters["required"] == ["a", "b"]
        replies = [
            await registry.call("sums_add", {"a": 2, "b": 3}),
            await registry.call("sums_add", {"a": "two"}),
            await registry.call("sums_fail", {}),
        ]
    return [(reply.content, reply.is_error) for reply in replies]


def check(replies: list[tuple[str, bool]]) -> None:
    assert replies[0] == ("5", False)
    assert replies[1][1]
    assert replies[2][1]


def test_the_tools_of_a_server_in_this_process() -> None:
    check(asyncio.run(answers(server())))


def test_the_tools_of_a_server_that_is_started(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(SERVER)
    started = StdioServerParameters(command=sys.executable, args=[str(tmp_path / "sums.py")])
    check(asyncio.run(answers(started)))
