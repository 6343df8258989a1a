"""Search tool (D4): lines of the task's files that match a regular expression."""

from __future__ import annotations

import fnmatch

from pydantic import Field

from harness.tools.confined import Confined
from harness.tools.registry import HostTool, Input, ToolFailure
from harness.tools.workspace import Workspace

MAX_LINE = 300


class SearchInput(Input):
    pattern: str = Field(min_length=1, description="Regular expression (grep -E), or plain text.")
    path: str = Field("", description="Folder to search; the whole working directory if empty.")
    files: str = Field("*", description="Only files whose name matches, for example *.py.")
    regex: bool = Field(False, description="Whether `pattern` is a regular expression.")
    limit: int = Field(100, ge=1, le=1000, description="How many lines at most.")


class Search(HostTool[SearchInput]):
    """`path:line: text` for each hit. Plain text is searched here; a regular expression by `grep`
    in the sandbox, where one that takes for ever is ended."""

    name = "search_files"
    description = "Search the text files of the working directory."
    input = SearchInput

    def __init__(self, workspace: Workspace, confined: Confined) -> None:
        self._workspace = workspace
        self._confined = confined

    async def run(self, given: SearchInput) -> str:
        if given.regex:
            return await self._grep(given)
        hits: list[str] = []
        for path, folder, name in self._workspace.walk(given.path):
            if not fnmatch.fnmatch(name, given.files):
                continue
            try:
                text = self._workspace.read_at(folder, name, path)
            except ToolFailure:
                continue  # binary or too long: not text to search
            for number, line in enumerate(text.split("\n"), 1):
                if given.pattern in line:
                    hits.append(f"{path}:{number}: {line.strip()[:MAX_LINE]}")
                    if len(hits) == given.limit:
                        return "\n".join([*hits, f"[the first {given.limit}; there may be more]"])
        return "\n".join(hits) or "nothing found"

    async def _grep(self, given: SearchInput) -> str:
        where = given.path or "."
        for _ in self._workspace.walk(given.path):
            break  # refuses a path outside
        argv = ["grep", "-rnIE", f"--include={given.files}", "-e", given.pattern, "--", where]
        done = await self._confined.run(argv)
        if done.code == 1 and not done.output:
            return "nothing found"
        if done.code != 0:
            raise ToolFailure(done.output.strip() or f"grep ended with {done.describe()}")
        lines = [line[: MAX_LINE + 100] for line in done.output.rstrip("\n").split("\n")]
        more = [f"[the first {given.limit} of {len(lines)}]"] if len(lines) > given.limit else []
        return "\n".join([*(line.removeprefix("./") for line in lines[: given.limit]), *more])
