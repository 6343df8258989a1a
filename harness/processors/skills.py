"""Skills (D3): instructions in files of their own, found by what the task says or read on demand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from harness.component import nearest
from harness.events import TaskStart, TaskView, ToolSpec
from harness.host import ToolRequest
from harness.processor import Context, Processor, ToolError
from harness.processors.bm25 import best
from harness.processors.front_matter import Page, pages

READ = "read_skill"


class Skills(Processor):
    """Skills are the Markdown files of `folder`, with `name` and `description` in their head.

    mode `inject`: the `top_k` that match the instruction best (BM25) are written below the system
    prompt, whole. mode `listing`: the name and description of all are listed, and the model reads
    one with the tool `read_skill`.
    """

    kind: ClassVar[str] = "skill"
    singleton_group: ClassVar[str | None] = "skills"
    dimension: ClassVar[str] = "D3"

    folder: str = "skills"
    mode: Literal["inject", "listing"] = "inject"
    top_k: int = Field(2, ge=1)

    def task_start(self, event: TaskStart, ctx: Context) -> Iterator[TaskStart]:
        known = pages(ctx.files, self.folder)
        if self.mode == "inject":
            found = best(ctx.task.instruction, [skill.text for skill in known], self.top_k)
            texts = [f"Skill: {known[i].name}\n{known[i].body}" for i in found]
        elif known:
            lines = [f"- {skill.name}: {skill.description}" for skill in known]
            texts = ["\n".join([f"Skills (read one with {READ}):", *lines])]
        else:
            texts = []
        parts = (event.system_prompt, *texts)
        yield replace(event, system_prompt="\n\n".join(part for part in parts if part))

    def own_tools(self, task: TaskView) -> tuple[ToolSpec, ...]:
        if self.mode != "listing":
            return ()
        name = {"type": "string", "description": "The skill's name, as listed."}
        schema = {"type": "object", "properties": {"name": name}, "required": ["name"]}
        return (ToolSpec(READ, "Read the instructions of one skill.", schema),)

    def answer(self, request: ToolRequest, ctx: Context) -> str:
        known: dict[str, Page] = {skill.name: skill for skill in pages(ctx.files, self.folder)}
        name = str(request.input.get("name", ""))
        if name not in known:
            raise ToolError(f"there is no skill {name!r}{nearest(name, known)}")
        return known[name].body
