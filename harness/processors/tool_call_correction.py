"""Tool-call correction (D7): a misspelt tool name is put right, a bad input is told back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, ClassVar

from pydantic import Field

from harness.events import BeforeModel, ModelResponse, ToolCall, ToolCallSpec
from harness.processor import Context, Processor
from harness.processors.told import tell, with_told

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}


class ToolCallCorrection(Processor):
    """Checks every call against the tools of the task, those of the bundle included.

    A name that no tool has becomes the nearest one where that is at least `similarity` alike (0 to
    1). A call with missing, unknown or wrongly typed arguments is blocked, and the model is told
    what was wrong and what the tool takes. An unknown tool is blocked and told, too.
    """

    kind: ClassVar[str] = "output_plumbing"
    singleton_group: ClassVar[str | None] = "tool_call_correction"
    after: ClassVar[tuple[str, ...]] = ("parse_repair",)
    dimension: ClassVar[str] = "D7"

    similarity: float = Field(0.7, ge=0, le=1)

    def after_model(self, event: ModelResponse, ctx: Context) -> Iterator[ModelResponse]:
        known = [tool.name for tool in ctx.task.tools]
        calls = tuple(self.named(call, known) for call in event.tool_calls)
        yield replace(event, tool_calls=calls) if calls != event.tool_calls else event

    def named(self, call: ToolCallSpec, known: list[str]) -> ToolCallSpec:
        if call.name in known:
            return call
        lowered = {name.lower().replace("-", "_"): name for name in known}
        wanted = call.name.lower().replace("-", "_")
        close = get_close_matches(wanted, list(lowered), n=1, cutoff=self.similarity)
        return replace(call, name=lowered[close[0]]) if close else call

    def before_tool(self, event: ToolCall, ctx: Context) -> Iterator[ToolCall]:
        specs = {tool.name: tool.parameters for tool in ctx.task.tools}
        if event.name not in specs:
            problems = [f"there is no such tool; there are {', '.join(sorted(specs)) or 'none'}"]
        else:
            problems = input_problems(event.input, specs[event.name])
        if problems and event.name != ctx.task.action_tool:
            tell(ctx, f"{event.name} was not called: {'; '.join(problems)}")
            event = replace(event, approved=False)
        yield event

    def before_model(self, event: BeforeModel, ctx: Context) -> Iterator[BeforeModel]:
        yield with_told(event, ctx)


def input_problems(given: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """What is wrong with the top level of a tool's input by its JSON schema."""
    fields: Mapping[str, Any] = schema.get("properties", {})
    problems = []
    missing = [name for name in schema.get("required", ()) if name not in given]
    if missing:
        problems.append(f"missing {', '.join(missing)}")
    if fields and schema.get("additionalProperties") is False:
        unknown = [name for name in given if name not in fields]
        if unknown:
            problems.append(f"unknown {', '.join(unknown)}; it takes {', '.join(fields)}")
    for name, value in given.items():
        wanted = fields.get(name, {}).get("type")
        kinds = _TYPES.get(wanted) if isinstance(wanted, str) else None
        wrong = kinds is not None and not isinstance(value, kinds)
        if wrong or (wanted in ("integer", "number") and isinstance(value, bool)):
            problems.append(f"{name} is {type(value).__name__}, {wanted} is expected")
    return problems
