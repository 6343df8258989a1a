"""An episode in the terminal: every model and tool call as it happens, the processors at the end."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.events import Message
from harness.host import Host, ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.jsonvalue import canonical
from harness.sandbox import Ran
from harness.shorten import head_and_tail
from rollout.envs.base import Score

MAX_SHOWN = 1500
_COLOURS = {"system": "magenta", "user": "cyan", "tool": "blue", "assistant": "green"}


class ShownHost:
    """A Host that prints what passes: to the model only what it has not seen in this run."""

    def __init__(self, host: Host, console: Console) -> None:
        self._host = host
        self._console = console
        self._seen: dict[str, tuple[Message, ...]] = {}
        self._step = -1

    async def model(self, request: ModelRequest) -> ModelReply:
        if request.step != self._step:
            self._step = request.step
            self._console.rule(f"step {request.step}", align="left")
        before = self._seen.get(request.role, ())
        for message in request.messages:
            if message not in before:
                self._say(message.role, _spoken(message.content, message.tool_calls))
        if request.role not in ("main", ""):
            self._say("system", f"(asked as {request.role})")
        reply = await self._host.model(request)
        self._say("assistant", _spoken(reply.content, reply.tool_calls))
        own = Message("assistant", reply.content, tool_calls=reply.tool_calls)
        self._seen[request.role] = (*request.messages, own)
        return reply

    async def tool(self, request: ToolRequest) -> ToolReply:
        reply = await self._host.tool(request)
        error = " (error)" if reply.is_error else ""
        asked = f"{request.name}({canonical(request.input)})"
        self._say("tool", f"{asked}{error} -> {reply.content}")
        return reply

    def _say(self, role: str, text: str) -> None:
        label = Text(f"{role:>9}  ", style=_COLOURS.get(role, ""))
        self._console.print(label + Text(head_and_tail(text, MAX_SHOWN)))


def _spoken(content: str, calls: tuple[object, ...]) -> str:
    shown = [f"{call.name}({canonical(dict(call.input))})" for call in calls]  # type: ignore[attr-defined]
    return "\n".join(part for part in (content, *shown) if part)


def show_end(console: Console, ran: Ran, score: Score | None) -> None:
    """How it ended, and what each processor did."""
    console.rule("end", align="left")
    result = ran.result
    console.print(Text(f"{result.status} after {result.steps} steps: {result.reason}"))
    if score is not None:
        console.print(
            Text(f"reward {score.reward:g}, {'solved' if score.success else 'not solved'}")
        )
    console.print(Text(f"isolation: {ran.level}"))
    trace = ran.trace or {}
    calls: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    wrong: dict[str, str] = {}
    for _, _, component, outcome, us, exception in trace.get("harness", ()):
        calls[component] += 1
        changed[component] += outcome in ("transform", "split", "intercept")
        spent[component] += round(us)
        if exception:
            wrong[component] = exception
    if calls:
        table = Table("component", "calls", "changed", "µs", "exception", box=None, pad_edge=False)
        for name in calls:
            cells = (name, str(calls[name]), str(changed[name]), str(spent[name]))
            table.add_row(*(Text(cell) for cell in (*cells, wrong.get(name, ""))))
        console.print(table)
    functions = Counter(record[1] for record in trace.get("functions", ()))
    if functions:
        listed = ", ".join(f"{name} x{count}" for name, count in functions.most_common(10))
        console.print(Text(f"functions of the bundle: {listed}"))
    for step, component, text in trace.get("notes", ()):
        console.print(Text(f"note at step {step} of {component}: {text}"))
