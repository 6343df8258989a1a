"""Goal filter (D7): offers only the admitted actions that can serve the goal sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from harness.events import BeforeModel
from harness.processor import Context, Processor
from harness.processors.household_text import noun
from harness.processors.last_user import last_user, with_last_user

_TAKE = re.compile(r"^take (?P<item>[a-z]+ \d+) from ")


class GoalFilter(Processor):
    """Drops actions by verb (`drop_verbs`) and, with `goal_objects`, every `take` of an object
    that the goal does not name. Where nothing would be left, all choices are kept."""

    kind: ClassVar[str] = "control_flow"
    singleton_group: ClassVar[str | None] = "goal_filter"
    dimension: ClassVar[str] = "D7"

    drop_verbs: tuple[str, ...] = ("close", "examine", "help", "inventory", "look", "slice")
    goal_objects: bool = True

    def before_model(self, event: BeforeModel, ctx: Context) -> Iterator[BeforeModel]:
        words = set(re.findall(r"[a-z]+", ctx.task.instruction.lower()))
        kept = tuple(c for c in last_user(event)[1].choices if self.serves(c, words))
        yield with_last_user(event, choices=kept) if kept else event

    def serves(self, command: str, words: set[str]) -> bool:
        if command.split(" ", 1)[0] in self.drop_verbs:
            return False
        take = _TAKE.match(command)
        return not (self.goal_objects and take and noun(take["item"]) not in words)
