"""The tool registry: tools by name with JSON schemas, offered to the model and called by the worker.

Host tools run on the worker's side (evolved code may not start processes or connect anywhere), each
in the task's own directory; see `workspace` and `confined`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.component import nearest
from harness.events import TaskView, ToolSpec
from harness.host import Host, ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.jsonvalue import thaw
from harness.shorten import head_and_tail, readable

MAX_RESULT = 100_000
"""Characters of one result; the middle of a longer one is left out."""


class ToolFailure(Exception):
    """The tool cannot do what was asked; the model reads the message."""


class Tool(Protocol):
    """Anything with a spec that can be called with a JSON object."""

    @property
    def spec(self) -> ToolSpec: ...

    async def call(self, given: Mapping[str, Any]) -> str:
        """The result as text. Raises ToolFailure."""
        ...


class Input(BaseModel):
    """Base of a tool's input: its fields are the JSON schema, unknown ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


I = TypeVar("I", bound=Input)  # noqa: E741


class HostTool(ABC, Generic[I]):
    """Base of the built-in tools: a name, a description, a pydantic input, a method."""

    name: ClassVar[str]
    description: ClassVar[str]
    input: type[I]

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.description, schema_of(self.input))

    async def call(self, given: Mapping[str, Any]) -> str:
        try:
            parsed = self.input.model_validate(thaw(given))
        except ValidationError as error:
            problems = (
                f"{'.'.join(map(str, item['loc'])) or 'input'}: {item['msg']}"
                for item in error.errors(include_url=False, include_context=False)
            )
            raise ToolFailure("; ".join(problems)) from error
        return await self.run(parsed)

    @abstractmethod
    async def run(self, given: I) -> str:
        """The result of a valid call. Raises ToolFailure."""


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON schema without pydantic's titles."""
    schema = model.model_json_schema()
    schema.pop("title", None)
    schema.pop("description", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
    schema.setdefault("properties", {})
    return schema


class ToolRegistry:
    """Tools by name. Raises ValueError for a name that is used twice."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        name = tool.spec.name
        if name in self._tools:
            raise ValueError(f"tool {name!r} is registered twice; rename one of them")
        self._tools[name] = tool

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """In the order in which they were added."""
        return tuple(tool.spec for tool in self._tools.values())

    async def call(self, name: str, given: Mapping[str, Any]) -> ToolReply:
        """The result; a call that makes no sense or fails is a reply with `is_error`."""
        if name not in self._tools:
            return ToolReply(f"there is no tool {name!r}{nearest(name, self._tools)}", True)
        try:
            text = await self._tools[name].call(given)
        except ToolFailure as error:
            return ToolReply(readable(str(error)), True)
        return ToolReply(head_and_tail(readable(text), MAX_RESULT))

    def offered(self, task: TaskView) -> TaskView:
        """The task with these tools beside its own. Raises ValueError where a name is taken."""
        both = sorted({tool.name for tool in task.tools} & set(self._tools))
        if both:
            raise ValueError(f"the task has tools {', '.join(both)} of its own; rename these")
        return replace(task, tools=(*task.tools, *self.specs))


class ToolHost:
    """A Host that answers the registry's tools itself and hands everything else on."""

    def __init__(self, host: Host, registry: ToolRegistry) -> None:
        self._host = host
        self._registry = registry

    async def model(self, request: ModelRequest) -> ModelReply:
        return await self._host.model(request)

    async def tool(self, request: ToolRequest) -> ToolReply:
        if request.name in self._registry:
            return await self._registry.call(request.name, request.input)
        return await self._host.tool(request)
