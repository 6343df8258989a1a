"""Sub-agent (D7): a tool `delegate` whose answer comes from a model loop with a context of its own."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from harness.events import Message, TaskView, ToolSpec
from harness.host import ModelRequest, ToolRequest
from harness.jsonvalue import thaw
from harness.processor import Context, Interrupt, Processor, ToolError

INSTRUCTION = "You work on one part of a larger task. Do it, then answer in a few sentences."


class SubAgent(Processor):
    """Offers the tool `name`: the model hands over a sub-task in words and reads the answer.

    The sub-agent (role `subagent`, system prompt `prompt`) starts with the sub-task alone and takes
    at most `max_turns` turns. tools: those of the task that it may call, through the host like the
    main agent's; own tools of the bundle are not among them. Its tokens count as the episode's.
    """

    kind: ClassVar[str] = "subagent"
    singleton_group: ClassVar[str | None] = "sub_agent"
    dimension: ClassVar[str] = "D7"

    name: str = "delegate"
    prompt: str = INSTRUCTION
    tools: tuple[str, ...] = ()
    max_turns: int = Field(6, ge=1)
    max_tokens: int | None = Field(None, ge=8)

    def own_tools(self, task: TaskView) -> tuple[ToolSpec, ...]:
        known = [tool.name for tool in task.tools]
        missing = [name for name in self.tools if name not in known]
        if missing:
            raise ValueError(
                f"sub_agent: tools names {', '.join(missing)}, which the task does not offer; it "
                f"offers {', '.join(known) or 'none'}"
            )
        what = {"type": "string", "description": "The sub-task, with all that one must know."}
        schema = {"type": "object", "properties": {"task": what}, "required": ["task"]}
        return (ToolSpec(self.name, "Hand a sub-task to an assistant.", schema),)

    async def answer(self, request: ToolRequest, ctx: Context) -> str:
        given = str(request.input.get("task", "")).strip()
        if not given:
            raise ToolError("`task` is empty; say what the assistant is to do")
        messages = [Message("system", self.prompt), Message("user", given)]
        offered = tuple(tool for tool in ctx.task.tools if tool.name in self.tools)
        for _ in range(self.max_turns):
            asked = ModelRequest(
                request.step, tuple(messages), offered, "subagent", self.max_tokens
            )
            reply = await ctx.host.model(asked)
            if not reply.tool_calls:
                return reply.content
            messages.append(Message("assistant", reply.content, tool_calls=reply.tool_calls))
            for call in reply.tool_calls:
                if call.name not in self.tools:
                    text = f"there is no tool {call.name!r} here"
                else:
                    asks = ToolRequest(request.step, call.call_id, call.name, thaw(call.input))
                    result = await ctx.host.tool(asks)
                    if result.done:
                        raise Interrupt("the environment ended the episode")
                    text = result.content
                messages.append(Message("tool", text, tool_call_id=call.call_id))
        return f"(the assistant did not finish within {self.max_turns} turns)"
