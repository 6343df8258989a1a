"""System prompt (D2): the text of a bundle file, put before everything the model reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from harness.events import TaskStart
from harness.processor import PRE, Context, Processor


class SystemPrompt(Processor):
    """Joins `path` of the bundle to the system prompt, one blank line between two of them."""

    kind: ClassVar[str] = "prompt"
    singleton_group: ClassVar[str | None] = "system_prompt"
    order: ClassVar[int] = PRE
    dimension: ClassVar[str] = "D2"

    path: str = "prompts/system.md"

    def task_start(self, event: TaskStart, ctx: Context) -> Iterator[TaskStart]:
        if self.path not in ctx.files:
            raise FileNotFoundError(
                f"system_prompt: the bundle has no file {self.path!r}; it has {sorted(ctx.files)}"
            )
        text = ctx.files[self.path].decode("utf-8").strip()
        yield replace(event, system_prompt="\n\n".join(t for t in (event.system_prompt, text) if t))
