"""Reading a model's answer: thinking taken off, JSON found, checked against its type.

Nothing is guessed. What is cut off, fenced wrong or not of the schema is refused with the reason,
which is what the model is told when it is asked once more.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from harness.shorten import readable

M = TypeVar("M", bound=BaseModel)
_THINK = re.compile(r"<think>.*?</think>", re.S)
_FENCE = re.compile(r"```(?:\w+)?\s*\n?(.*?)```", re.S)
MAX_PROBLEMS = 8


class Unreadable(ValueError):
    """An answer that is not what was asked for; the message says why, for the model to read."""


def without_thinking(text: str) -> str:
    """The answer alone. Raises Unreadable where a `<think>` is never closed.

    A closing tag alone counts too: some chat templates open the block in the prompt."""
    text = _THINK.sub("", text)
    if "<think>" in text:
        raise Unreadable("the thinking was never closed with </think>, so there is no answer")
    return text.rpartition("</think>")[2].strip()


def read(text: str, finish_reason: str, model: type[M]) -> M:
    """The answer as `model`. Raises Unreadable."""
    if finish_reason == "length":
        raise Unreadable("the answer was cut off at its token limit; give a shorter one")
    found = _object(without_thinking(readable(text)))
    try:
        return model.model_validate(found)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, item['loc'])) or 'answer'}: {item['msg']}"
            for item in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise Unreadable(listed(problems)) from error


def listed(problems: list[str]) -> str:
    """The first problems in one line, and how many more there are."""
    more = len(problems) - MAX_PROBLEMS
    return "; ".join(problems[:MAX_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")


def _object(text: str) -> Any:
    """The one JSON object of `text`: bare, fenced, or with words around it."""
    if not text:
        raise Unreadable("the answer is empty")
    fenced = [body.strip() for body in _FENCE.findall(text)]
    around = text[text.find("{") : text.rfind("}") + 1] if "{" in text else ""
    said = ""
    for candidate in (text, *fenced, around):
        if not candidate.startswith("{"):
            continue
        try:
            return json.loads(candidate, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            said = said or str(error)
    raise Unreadable(f"it is not one JSON object ({said or 'there is no brace in it'})")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def strict_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema as structured outputs want it: references resolved, every object closed, every
    field required, no titles and no defaults."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return walk(deepcopy(definitions[node["$ref"].rpartition("/")[2]]))
        out = {
            key: {name: walk(item) for name, item in value.items()}
            if key == "properties"
            else walk(value)
            for key, value in node.items()
            if key not in ("title", "default")
        }
        if out.get("type") == "object" and "properties" in out:
            out["additionalProperties"] = False
            out["required"] = list(out["properties"])
        return out

    found: dict[str, Any] = walk(schema)
    return found
