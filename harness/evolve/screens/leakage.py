"""The leakage screen: an edit may not carry the tasks it is judged on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from harness.edit import AddComponent, Edit, PutFile, ReplaceComponent, SetParam
from harness.evolve.parts import Evaluate, Part, ScreenResult, Situation
from harness.evolve.records import Candidate, Episode
from harness.jsonvalue import thaw

_WORD = re.compile(r"[\w']+")


class Leakage(Part):
    """Refuses text, added by the edits, that holds a term of the deny-list (task ids, entities,
    answers), a task key, or `words` words in a row of a task's instruction (all, if shorter)."""

    stage: ClassVar[Literal["proposal", "select"]] = "proposal"

    words: int = Field(5, ge=2)

    async def check(
        self, candidate: Candidate, at: Situation, episodes: Sequence[Episode], evaluate: Evaluate
    ) -> ScreenResult:
        text = "\n".join(piece for edit in candidate.edits for piece in edit_texts(edit))
        folded = text.casefold()
        denied = {term for term in at.deny if term} | {run.task for run in at.episodes if run.task}
        for term in sorted(denied):
            if re.search(rf"(?<!\w){re.escape(term.casefold())}(?!\w)", folded):
                return ScreenResult(False, f"leakage: the edit holds the denied term {term!r}")
        mine = f" {' '.join(_WORD.findall(folded))} "
        for instruction in sorted({run.instruction for run in at.episodes if run.instruction}):
            words = _WORD.findall(instruction.casefold())
            n = min(self.words, len(words))
            for start in range(len(words) - n + 1 if n > 1 else 0):
                phrase = " ".join(words[start : start + n])
                if f" {phrase} " in mine:
                    return ScreenResult(
                        False, f"leakage: the edit repeats {phrase!r} of a task's instruction"
                    )
        return ScreenResult(True)


def edit_texts(edit: Edit) -> Iterable[str]:
    """Every text that an edit adds: ids, parameter values, paths, file contents."""
    match edit:
        case AddComponent(component) | ReplaceComponent(component):
            yield from _texts(thaw(component.record()))
        case SetParam(_, name, value):
            yield name
            yield from _texts(value)
        case PutFile(path, file):
            yield path
            yield file.content.decode("utf-8", errors="replace")


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
