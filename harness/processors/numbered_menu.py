"""Numbered menu (D7): offers the admitted actions as a list; the model answers with a line of it.

A model too small to find an action by itself can still choose one. A label stands after its
action, so that a causal model has read the action when it reads the label.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from harness.events import BeforeModel, ModelResponse
from harness.processor import POST, Context, Processor
from harness.processors.last_user import append_to_last_user, last_user

_LINE = re.compile(r"^(?P<action>.+) \[(?P<label>\d+)\]$")
_LABEL = re.compile(r"\[?(\d+)\]?")


MARK = "options:"


def menu_answer(command: str, content: str) -> str | None:
    """How `command` is answered under the user message `content`: its label, or the command itself
    where the menu has no labels. None where the menu does not offer it."""
    _, found, menu = content.partition(f"{MARK}\n")
    for line in menu.split("\n") if found else ():
        if line == command:
            return command
        match = _LINE.match(line)
        if match and match["action"] == command:
            return f"[{match['label']}]"
    return None


class NumberedMenu(Processor):
    """Writes the actions below the last user message, a line each, at most `max_items`.

    labels: `number` writes `action [3]` and takes 3 or [3] for an answer; `none` writes the action
    alone, and the answer is the action. item_order: `shuffled` draws the listed ones and their order from the episode's seed, so that a
    long list is sampled rather than cut at its end; `given` keeps the environment's order.
    An answer that is no label of the menu is passed on as it is.
    """

    kind: ClassVar[str] = "output_plumbing"
    singleton_group: ClassVar[str | None] = "numbered_menu"
    order: ClassVar[int] = POST
    dimension: ClassVar[str] = "D7"

    max_items: int = Field(12, ge=2, le=64)
    item_order: Literal["shuffled", "given"] = "shuffled"
    labels: Literal["number", "none"] = "number"

    def before_model(self, event: BeforeModel, ctx: Context) -> Iterator[BeforeModel]:
        choices = list(last_user(event)[1].choices)
        if self.item_order == "shuffled":
            ctx.rng.shuffle(choices)
        menu = choices[: self.max_items]
        ctx.state["menu"] = menu
        if not menu:
            yield event
            return
        lines = [c if self.labels == "none" else f"{c} [{i}]" for i, c in enumerate(menu)]
        yield append_to_last_user(event, "\n".join([MARK, *lines]))

    def after_model(self, event: ModelResponse, ctx: Context) -> Iterator[ModelResponse]:
        menu: list[str] = ctx.state.get("menu", [])
        found = _LABEL.fullmatch(event.content.strip()) if self.labels == "number" else None
        if found and int(found[1]) < len(menu):
            yield replace(event, content=menu[int(found[1])])
        else:
            yield event
