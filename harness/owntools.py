"""The tools that a bundle offers itself: collected at the start of a run, answered in this process.

Any processor may offer some (`Processor.own_tools` and `answer`). The model sees them beside the
task's; a call of one goes through before_tool and after_tool, and never reaches the host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from inspect import isawaitable
from time import perf_counter_ns
from typing import Any

from harness.contract import Breach, frozen_mapping
from harness.events import TaskView, ToolSpec
from harness.harness_trace import TOOL
from harness.host import ToolReply, ToolRequest
from harness.pipeline import ContextFactory, describe, fault_of, outcome_of
from harness.processor import Processor, ToolError
from harness.shorten import readable

MAX_RESULT = 1 << 20
"""Characters of one result."""

MAX_TOOLS = 64
"""Tools that one component may offer."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class OwnTools:
    """Own tools of one run. task: with the own tools added to its `tools`.

    Raises ContractViolation for a tool that is malformed or whose name is taken, ProcessorError
    for what `own_tools` raises.
    """

    def __init__(self, offering: Iterable[tuple[str, Processor]], task: TaskView) -> None:
        self._by_name: dict[str, tuple[str, Processor]] = {}
        taken = {tool.name: "the task" for tool in task.tools}
        own: list[ToolSpec] = []
        for component, processor in offering:
            try:
                for count, spec in enumerate(processor.own_tools(task)):
                    if count == MAX_TOOLS:
                        raise Breach("own_tools", f"offers more than {MAX_TOOLS} tools")
                    own.append(_checked(spec, taken))
                    taken[spec.name] = f"component {component!r}"
                    self._by_name[spec.name] = (component, processor)
            except (Exception, SystemExit) as error:  # a model's code
                raise fault_of(error, component, "task_start") from error
        self.task = replace(task, tools=(*task.tools, *own)) if own else task

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    async def answer(
        self,
        request: ToolRequest,
        choices: tuple[str, ...],
        contexts: ContextFactory,
        record: Callable[[Any], None] | None = None,
    ) -> ToolReply:
        """The component's answer. choices: those that the environment last offered, which stand.

        Raises ContractViolation, ProcessorError, Interrupt, and HostError from a host call.
        """
        component, processor = self._by_name[request.name]
        if record:
            record((TOOL, (component,)))
            record(perf_counter_ns())
        failed = False
        try:
            try:
                text = processor.answer(request, contexts(component))
                if isawaitable(text):
                    text = await text
            except ToolError as error:
                text, failed = str(error), True
            if not isinstance(text, str) or len(text) > MAX_RESULT:
                what = type(text).__name__ if not isinstance(text, str) else f"{len(text)} long"
                raise Breach("result", f"is {what}; a str of at most {MAX_RESULT} is expected")
        except (Exception, SystemExit) as error:  # a model's code
            fault = fault_of(error, component, f"the tool {request.name!r}")
            if record:
                record((component, outcome_of(fault), describe(error), perf_counter_ns()))
            if fault is error:
                raise
            raise fault from error
        if record:  # as a change: the model reads the answer
            record((component, "transform", "", perf_counter_ns()))
        return ToolReply(readable(text), failed, choices)


def _checked(spec: object, taken: dict[str, str]) -> ToolSpec:
    """The spec with frozen parameters. Raises Breach."""
    if type(spec) is not ToolSpec:
        raise Breach("own_tools", f"holds {type(spec).__name__}; ToolSpec is expected")
    if type(spec.name) is not str or not _NAME.fullmatch(spec.name):
        raise Breach("own_tools", f"names a tool {spec.name!r}; 1-64 of A-Z a-z 0-9 _ - expected")
    if type(spec.description) is not str:
        raise Breach("own_tools", f"describes {spec.name!r} by no text")
    if spec.name in taken:
        raise Breach(
            "own_tools", f"offers {spec.name!r}, which {taken[spec.name]} offers; rename it"
        )
    return replace(spec, parameters=frozen_mapping("own_tools.parameters", spec.parameters))
