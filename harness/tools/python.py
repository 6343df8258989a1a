"""Python tool (D4): a program text, run by an interpreter of its own in the task's directory."""

from __future__ import annotations

import sys

from pydantic import Field

from harness.tools.confined import Confined
from harness.tools.registry import HostTool, Input


class PythonInput(Input):
    code: str = Field(min_length=1, description="A Python program; print what you want to see.")


class Python(HostTool[PythonInput]):
    """Each call is an interpreter of its own: files stay, variables do not."""

    name = "python"
    description = "Run a Python program in the working directory; no network."
    input = PythonInput

    def __init__(self, confined: Confined) -> None:
        self._confined = confined

    async def run(self, given: PythonInput) -> str:
        done = await self._confined.run([sys.executable, "-I", "-B", "-"], stdin=given.code)
        return done.report()
