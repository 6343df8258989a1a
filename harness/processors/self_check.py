"""Self-check (D7): one model call judges the final answer before it is given."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import ClassVar

from pydantic import Field

from harness.events import BeforeModel, Message, ModelResponse
from harness.host import ModelRequest
from harness.processor import POST, Context, Processor
from harness.processors.final_answer import is_final
from harness.processors.told import tell, with_told

INSTRUCTION = (
    "You check an answer to a task. Begin with PASS if the answer does what the task asks for and "
    "is correct as far as you can tell, or with FAIL and one sentence that says what is wrong."
)
_VERDICT = re.compile(r"\W*(PASS|FAIL)\b[\s:.,-]*(.*)", re.S | re.I)


class SelfCheck(Processor):
    """Asks the model (role `judge`, instruction `prompt`, at most `max_tokens`) about a final answer.

    FAIL hands the answer back with the judge's words, at most `max_rejections` times. A verdict
    that is neither lets the answer pass and is noted in the trace. With completion_check in the
    bundle only answers that passed it are judged.
    """

    kind: ClassVar[str] = "control_flow"
    singleton_group: ClassVar[str | None] = "self_check"
    order: ClassVar[int] = POST
    after: ClassVar[tuple[str, ...]] = ("completion_check",)
    dimension: ClassVar[str] = "D7"

    prompt: str = INSTRUCTION
    max_tokens: int = Field(128, ge=8)
    max_rejections: int = Field(1, ge=1)

    async def after_model(self, event: ModelResponse, ctx: Context) -> AsyncIterator[ModelResponse]:
        rejected = ctx.state.get("rejected", 0)
        if not is_final(event, ctx) or rejected >= self.max_rejections:
            yield event
            return
        asked = f"Task:\n{ctx.task.instruction}\n\nAnswer:\n{event.content}"
        messages = (Message("system", self.prompt), Message("user", asked))
        request = ModelRequest(event.step, messages, role="judge", max_tokens=self.max_tokens)
        said = (await ctx.host.model(request)).content
        verdict = _VERDICT.match(said)
        if verdict is None:
            ctx.note(f"no verdict in {said[:80]!r}")
        if verdict is None or verdict[1].upper() == "PASS":
            yield event
            return
        ctx.state["rejected"] = rejected + 1
        tell(ctx, f"A check of your answer found: {verdict[2].strip() or 'it is wrong'}")

    def before_model(self, event: BeforeModel, ctx: Context) -> Iterator[BeforeModel]:
        yield with_told(event, ctx)
