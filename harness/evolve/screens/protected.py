"""The screen of protected paths and size: an edit brings parts of a harness and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import ClassVar, Literal

from pydantic import Field

from harness.bundle import disk_files
from harness.edit import PutFile, diff
from harness.evolve.parts import Evaluate, Part, ScreenResult, Situation
from harness.evolve.records import Candidate, Episode


class Protected(Part):
    """Refuses a written file whose path or name fits one of `paths` (shell patterns, case ignored),
    and a bundle of more than `max_files` files or `max_bytes` bytes.

    Nothing of a bundle can reach the verifier; a file that is named as if it did shows what the
    edit is after, and is kept out of every later harness.
    """

    stage: ClassVar[Literal["proposal", "select"]] = "proposal"

    paths: tuple[str, ...] = (
        "scorer*",
        "grader*",
        "verifier.py",
        "reward*",
        "conftest.py",
        "sitecustomize.py",
        "usercustomize.py",
        "*.pth",
        "*.so",
        "*.pkl",
        ".*",
    )
    max_files: int = Field(200, ge=1)
    max_bytes: int = Field(2 << 20, ge=1)

    async def check(
        self, candidate: Candidate, at: Situation, episodes: Sequence[Episode], evaluate: Evaluate
    ) -> ScreenResult:
        for edit in diff(at.incumbent, candidate.bundle):
            if not isinstance(edit, PutFile):
                continue
            for step in (edit.path, *edit.path.split("/")):
                for pattern in self.paths:
                    if fnmatchcase(step.lower(), pattern.lower()):
                        return ScreenResult(
                            False, f"the edit writes {edit.path!r}, which is protected ({pattern})"
                        )
        files = disk_files(candidate.bundle).values()
        size = sum(len(file.content) for file in files)
        if len(files) > self.max_files or size > self.max_bytes:
            return ScreenResult(
                False,
                f"the bundle has {len(files)} files and {size} bytes; {self.max_files} and "
                f"{self.max_bytes} are the most",
            )
        return ScreenResult(True)
