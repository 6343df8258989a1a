"""Shell tool (D4): one command line, run in the task's sandboxed directory."""

from __future__ import annotations

from pydantic import Field

from harness.tools.confined import Confined
from harness.tools.registry import HostTool, Input


class ShellInput(Input):
    command: str = Field(min_length=1, description="A command line for sh.")


class Shell(HostTool[ShellInput]):
    """Each call is a shell of its own: files stay, variables and directories do not."""

    name = "shell"
    description = "Run a shell command in the working directory; no network."
    input = ShellInput

    def __init__(self, confined: Confined) -> None:
        self._confined = confined

    async def run(self, given: ShellInput) -> str:
        done = await self._confined.run(["/bin/sh", "-c", given.command])
        return done.report()
