"""MCP client (D4): the tools of a Model Context Protocol server, through the official SDK.

Needs the extra `mcp` (`pip install 'coevo[mcp]'`). A server is the operator's choice and runs with
the worker's rights, so which one is used is never for a bundle to say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client, MCPError, StdioServerParameters
from mcp_types import CallToolResult, TextContent
from mcp_types import Tool as RemoteSpec

from harness.events import ToolSpec
from harness.host import HostError
from harness.tools.registry import ToolFailure


class McpTool:
    """One tool of a connected server. prefix: put before its name, with `_` between."""

    def __init__(self, client: Client, remote: RemoteSpec, prefix: str) -> None:
        self._client = client
        self._remote = remote
        name = f"{prefix}_{remote.name}" if prefix else remote.name
        self._spec = ToolSpec(name, remote.description or "", remote.input_schema)

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def call(self, given: Mapping[str, Any]) -> str:
        """Raises ToolFailure for an error of the tool, HostError(infra) where the server is gone."""
        try:
            result = await self._client.call_tool(self._remote.name, dict(given))
        except MCPError as error:
            raise ToolFailure(str(error)) from error
        except (OSError, RuntimeError) as error:
            raise HostError("infra", f"the MCP server does not answer: {error}") from error
        text = _text(result)
        if result.is_error:
            raise ToolFailure(text or "the tool failed and said nothing")
        return text


def _text(result: CallToolResult) -> str:
    """The text parts; other parts are named by their type."""
    return "\n".join(
        part.text if isinstance(part, TextContent) else f"[{part.type}]" for part in result.content
    )


@asynccontextmanager
async def mcp_tools(
    server: StdioServerParameters | str | Any, prefix: str = "", timeout_s: float = 60.0
) -> AsyncIterator[list[McpTool]]:
    """The tools of a server while the connection lasts.

    server: a command to start (StdioServerParameters), a URL (streamable HTTP), or a server object
    in this process. Raises what the SDK raises where it cannot be reached.
    """
    async with Client(server, read_timeout_seconds=timeout_s) as client:
        tools: list[McpTool] = []
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            tools += (McpTool(client, remote, prefix) for remote in page.tools)
            cursor = page.next_cursor
            if cursor is None:
                break
        yield tools
