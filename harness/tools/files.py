"""File tools (D4): read, write and edit files of the task's directory."""

from __future__ import annotations

from pydantic import Field

from harness.tools.registry import HostTool, Input, ToolFailure
from harness.tools.workspace import Workspace


class ReadInput(Input):
    path: str = Field(description="Path relative to the working directory.")
    first: int = Field(1, ge=1, description="First line, from 1.")
    lines: int = Field(500, ge=1, le=5000, description="How many lines at most.")


class ReadFile(HostTool[ReadInput]):
    """Lines with their numbers, and how many there are."""

    name = "read_file"
    description = "Read lines of a text file."
    input = ReadInput

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def run(self, given: ReadInput) -> str:
        lines = self._workspace.read(given.path).split("\n")
        if lines and not lines[-1]:
            lines.pop()
        if given.first > max(len(lines), 1):
            raise ToolFailure(f"{given.path}: has {len(lines)} lines; none from {given.first} on")
        shown = lines[given.first - 1 : given.first - 1 + given.lines]
        out = [f"{number:>5}  {line}" for number, line in enumerate(shown, given.first)]
        last = given.first - 1 + len(shown)
        if last < len(lines):
            out.append(f"[lines {given.first}-{last} of {len(lines)}]")
        return "\n".join(out) or "[the file is empty]"


class WriteInput(Input):
    path: str = Field(description="Path relative to the working directory.")
    content: str = Field(description="The whole new content.")


class WriteFile(HostTool[WriteInput]):
    """Whole or not at all; folders are made."""

    name = "write_file"
    description = "Write a text file, new or in the place of the old one."
    input = WriteInput

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def run(self, given: WriteInput) -> str:
        return f"wrote {self._workspace.write(given.path, given.content)} bytes to {given.path}"


class EditInput(Input):
    path: str = Field(description="Path relative to the working directory.")
    old: str = Field(min_length=1, description="Text to replace; must stand there exactly once.")
    new: str = Field(description="What to put in its place.")
    all: bool = Field(False, description="Replace every occurrence.")


class EditFile(HostTool[EditInput]):
    """Exact replacement; an `old` that is ambiguous is refused with the count."""

    name = "edit_file"
    description = "Replace an exact piece of text in a file."
    input = EditInput

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def run(self, given: EditInput) -> str:
        text = self._workspace.read(given.path)
        count = text.count(given.old)
        if count == 0:
            raise ToolFailure(f"{given.path}: does not hold that text; read the file again")
        if count > 1 and not given.all:
            raise ToolFailure(
                f"{given.path}: holds that text {count} times; give more of its surroundings, or "
                "set `all`"
            )
        self._workspace.write(given.path, text.replace(given.old, given.new))
        return f"replaced {count} in {given.path}"
