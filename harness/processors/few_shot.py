"""Few-shot examples (D2): worked examples from a bundle file, before the task itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from harness.events import Message, StepStart, TaskStart
from harness.processor import POST, Context, Processor


class FewShotError(ValueError):
    """An example file that cannot be used; the message names the file and the line."""


class FewShot(Processor):
    """Shows the first `count` examples of `path`, a JSON object `{"input", "output"}` a line.

    mode `system` writes them below the system prompt, where a history window does not reach them;
    mode `turns` puts them as user and assistant turns before the opening message of the history.
    title: the line above them in mode `system`.
    """

    kind: ClassVar[str] = "prompt"
    singleton_group: ClassVar[str | None] = "few_shot"
    order: ClassVar[int] = POST  # the system prompt stands first; the opening is shaped alone
    dimension: ClassVar[str] = "D2"

    path: str = "prompts/examples.jsonl"
    count: int = Field(4, ge=1)
    mode: Literal["system", "turns"] = "system"
    title: str = "Examples:"

    def task_start(self, event: TaskStart, ctx: Context) -> Iterator[TaskStart]:
        if self.mode != "system":
            yield event
            return
        shown = [f"Input: {given}\nOutput: {wanted}" for given, wanted in self.examples(ctx)]
        parts = (event.system_prompt, self.title, *shown)
        yield replace(event, system_prompt="\n\n".join(part for part in parts if part))

    def step_start(self, event: StepStart, ctx: Context) -> Iterator[StepStart]:
        if self.mode != "turns" or event.step > 0:
            yield event
            return
        turns = [
            message
            for given, wanted in self.examples(ctx)
            for message in (Message("user", given), Message("assistant", wanted))
        ]
        yield replace(event, history=(*turns, *event.history))

    def examples(self, ctx: Context) -> list[tuple[str, str]]:
        """(input, output) pairs. Raises FewShotError."""
        if self.path not in ctx.files:
            raise FewShotError(
                f"few_shot: the bundle has no file {self.path!r}; it has {sorted(ctx.files)}"
            )
        out: list[tuple[str, str]] = []
        for number, line in enumerate(ctx.files[self.path].decode("utf-8").split("\n"), 1):
            if not line.strip() or len(out) == self.count:
                continue
            try:
                record = json.loads(line)
                given, wanted = record["input"], record["output"]
            except (ValueError, TypeError, KeyError) as error:
                raise FewShotError(
                    f'few_shot: {self.path} line {number} is no {{"input": …, "output": …}}: {error}'
                ) from error
            out.append((str(given), str(wanted)))
        return out
