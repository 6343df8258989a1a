"""Episodic memory (D3): notes of this episode, and what earlier ones left in the bundle's files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from harness.events import BeforeModel, TaskStart, TaskView, ToolSpec
from harness.host import ToolRequest
from harness.processor import Context, Processor, ToolError
from harness.processors.bm25 import best
from harness.processors.front_matter import pages
from harness.processors.last_user import append_to_last_user

NOTE, RECALL = "note", "recall"


class EpisodicMemory(Processor):
    """Two tools: `note` keeps a text for this episode, `recall` searches notes and memory files.

    The memory files are the Markdown files of `folder`; the `top_k` that match the instruction best
    (BM25) are written below the system prompt, each cut at `max_chars`. show_notes: the newest of
    the episode's notes stand below the last user message of every turn. max_notes: the oldest is
    forgotten past it. tools: False offers no tools, for models that cannot call any.
    """

    kind: ClassVar[str] = "memory"
    singleton_group: ClassVar[str | None] = "episodic_memory"
    dimension: ClassVar[str] = "D3"

    folder: str = "memory"
    top_k: int = Field(3, ge=0)
    max_chars: int = Field(1000, ge=40)
    max_notes: int = Field(50, ge=1)
    show_notes: int = Field(5, ge=0)
    tools: bool = True

    def task_start(self, event: TaskStart, ctx: Context) -> Iterator[TaskStart]:
        known = pages(ctx.files, self.folder)
        found = best(ctx.task.instruction, [item.text for item in known], self.top_k)
        texts = [f"Memory: {known[i].name}\n{known[i].body[: self.max_chars]}" for i in found]
        parts = (event.system_prompt, *texts)
        yield replace(event, system_prompt="\n\n".join(part for part in parts if part))

    def before_model(self, event: BeforeModel, ctx: Context) -> Iterator[BeforeModel]:
        notes: list[str] = ctx.state.get("notes", [])
        for text in notes[max(len(notes) - self.show_notes, 0) :]:
            event = append_to_last_user(event, f"note: {text}")
        yield event

    def own_tools(self, task: TaskView) -> tuple[ToolSpec, ...]:
        if not self.tools:
            return ()
        return (
            ToolSpec(NOTE, "Keep a note for later in this task.", _one("text", "What to keep.")),
            ToolSpec(RECALL, "Search your notes and memories.", _one("query", "What to look for.")),
        )

    def answer(self, request: ToolRequest, ctx: Context) -> str:
        notes: list[str] = ctx.state.setdefault("notes", [])
        if request.name == NOTE:
            text = " ".join(str(request.input.get("text", "")).split())
            if not text:
                raise ToolError("an empty note was not kept; give it a `text`")
            notes.append(text[: self.max_chars])
            del notes[: -self.max_notes]
            return f"kept; {len(notes)} notes"
        query = str(request.input.get("query", ""))
        filed = pages(ctx.files, self.folder)
        memories = [f"{item.name}: {item.body[: self.max_chars]}" for item in filed]
        known = [*reversed(notes), *memories]
        found = best(query, known, max(self.top_k, 1))
        return "\n".join(f"- {known[i]}" for i in found) or "nothing found"


def _one(name: str, description: str) -> dict[str, object]:
    field = {"type": "string", "description": description}
    return {"type": "object", "properties": {name: field}, "required": [name]}
