"""The Evolver's desk: a scratch copy of a bundle in a directory of its own, and the tools for it.

Paths stay inside the copy, its size is capped, and evolved code runs in the sandbox only. The edit
is what differs between the copy and the incumbent, whatever the model says of it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from harness.bundle import Bundle, BundleError, dump, load
from harness.change import render_diff, summary
from harness.component import MAX_FILE_BYTES
from harness.evolve.proposers.builtins import describe_part, list_parts
from harness.evolve.proposers.replay import Replayed, compared, replay
from harness.evolve.records import Episode
from harness.sandbox import Sandbox
from harness.tools.files import EditFile, ReadFile, WriteFile
from harness.tools.registry import HostTool, Input, Tool, ToolFailure
from harness.tools.workspace import Workspace

MAX_FILES = 200
MAX_BYTES = 2 << 20
"""Of a scratch copy, all files together."""


class CappedWorkspace(Workspace):
    """A workspace that stays within MAX_FILES files and MAX_BYTES bytes."""

    def write(self, path: str, text: str) -> int:
        size = len(text.encode("utf-8", "replace"))
        if size > MAX_FILE_BYTES:
            raise ToolFailure(
                f"{path}: {size} bytes; a file of a bundle has {MAX_FILE_BYTES} at most"
            )
        sizes = {name: os.stat(file, dir_fd=folder).st_size for name, folder, file in self.walk()}
        sizes[os.path.normpath(path)] = size
        if len(sizes) > MAX_FILES or sum(sizes.values()) > MAX_BYTES:
            raise ToolFailure(
                f"{path}: the bundle would have {len(sizes)} files and {sum(sizes.values())} bytes; "
                f"{MAX_FILES} and {MAX_BYTES} are the most"
            )
        return super().write(path, text)

    def remove(self, path: str) -> None:
        """Delete a regular file. Raises ToolFailure."""
        with self._folder(path) as (folder, name):
            os.unlink(name, dir_fd=folder)


class Scratch:
    """A copy of `start` to be edited, judged against `incumbent`. A context manager: it is deleted.

    episode: played back by `tried`; None where there is none. tools: names that tasks offer.
    """

    def __init__(
        self,
        start: Bundle,
        incumbent: Bundle,
        sandbox: Sandbox,
        episode: Episode | None,
        tools: Sequence[str] = (),
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="coevo-scratch-")
        root = Path(self._folder.name) / "bundle"
        dump(start, root)
        self.root = root
        self.workspace = CappedWorkspace(root)
        self.incumbent = incumbent
        self._sandbox, self._episode, self._tools = sandbox, episode, tools
        self._replays: dict[str, Replayed] = {}

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def bundle(self) -> Bundle:
        """The copy as it is now. Raises ToolFailure with every reason why it is no bundle."""
        try:
            return load(self.root)
        except BundleError as error:
            raise ToolFailure("this is no bundle: " + "; ".join(error.problems)) from error

    async def tried(self) -> tuple[Bundle, int, str]:
        """Replay the copy: the bundle, how many model inputs differ, the first difference.

        Raises ToolFailure where the harness fails, EvolutionInfraError where nothing can be run."""
        bundle = self.bundle()
        if self._episode is None:
            raise ToolFailure("there is no recorded episode to replay")
        after = await self._replayed(bundle, self._episode)
        if not after.ran:
            raise ToolFailure(f"the harness failed: {after.status}: {after.reason}")
        before = await self._replayed(self.incumbent, self._episode)
        return bundle, *compared(before, after)

    async def _replayed(self, bundle: Bundle, episode: Episode) -> Replayed:
        if bundle.id not in self._replays:
            self._replays[bundle.id] = await replay(self._sandbox, bundle, episode, self._tools)
        return self._replays[bundle.id]


def desk(scratch: Scratch) -> list[Tool]:
    """The tools for a scratch copy; what hands the work in is the proposer's."""
    space = scratch.workspace
    return [
        ListFiles(space), ReadFile(space), WriteFile(space), EditFile(space), DeleteFile(space),
        Parts(), Diff(scratch), TryBundle(scratch),
    ]  # fmt: skip


class NoInput(Input):
    pass


class PathInput(Input):
    path: str = Field(description="Path relative to the bundle's root.")


class NameInput(Input):
    name: str = Field("", description="A built-in part; empty: a list of all.")


class ListFiles(HostTool[NoInput]):
    """Every file with its size."""

    name = "list_files"
    description = "List the files of the bundle."
    input = NoInput

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def run(self, given: NoInput) -> str:
        lines = [
            f"{path} ({os.stat(name, dir_fd=folder).st_size} bytes)"
            for path, folder, name in self._workspace.walk()
        ]
        return "\n".join(lines) or "[no file]"


class DeleteFile(HostTool[PathInput]):
    """One regular file."""

    name = "delete_file"
    description = "Delete a file of the bundle."
    input = PathInput

    def __init__(self, workspace: CappedWorkspace) -> None:
        self._workspace = workspace

    async def run(self, given: PathInput) -> str:
        self._workspace.remove(given.path)
        return f"deleted {given.path}"


class Parts(HostTool[NameInput]):
    """The built-in parts that a component can name."""

    name = "parts"
    description = "List the built-in parts, or show one with its parameters."
    input = NameInput

    async def run(self, given: NameInput) -> str:
        return describe_part(given.name) if given.name else list_parts()


class Diff(HostTool[NoInput]):
    """The whole edit, as it will be judged."""

    name = "diff"
    description = "Show how the bundle differs from the incumbent."
    input = NoInput

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch

    async def run(self, given: NoInput) -> str:
        bundle = self._scratch.bundle()
        change = summary(self._scratch.incumbent, bundle)
        if not change.count:
            return "nothing differs from the incumbent"
        head = f"{change.count} edits of kinds {', '.join(change.kinds)}\n"
        return head + render_diff(self._scratch.incumbent, bundle)


class TryBundle(HostTool[NoInput]):
    """Build and replay in the sandbox."""

    name = "try_bundle"
    description = "Build the bundle and replay a recorded episode through it in the sandbox."
    input = NoInput

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch

    async def run(self, given: NoInput) -> str:
        _, count, first = await self._scratch.tried()
        if not count:
            return "it runs; the model would have read nothing else than under the incumbent"
        return f"it runs; {count} model calls would have read something else. The first, {first}"
