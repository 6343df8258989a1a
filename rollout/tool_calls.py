"""Tool calls in sampled text: one parser a model family, and which one a chat template needs.

vLLM's own parsers belong to its server: importing them costs a rollout worker 8 s and 140 MB, and
they take the server's request objects. Formats: Hermes and Qwen, Llama 3 (JSON), Mistral, and lists
of Python calls (Llama 3.2, Llama 4).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

ParserName = Literal["auto", "hermes", "llama3_json", "mistral", "pythonic", "none"]
TemplateName = Literal["model", "plain"]

Call = tuple[str, dict[str, Any]]
"""A tool's name and its input."""

_THINKING = re.compile(r"\s*(</?think>)\s*")
_HERMES = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.S)
_PYTHON_TAGS = re.compile(r"<\|python_(?:tag|start|end)\|>")
_MISTRAL = "[TOOL_CALLS]"
_MISTRAL_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+\s*)?(?:\[ARGS\])?\s*(?=\{)")


class MalformedCall(ValueError):
    """Text that begins as a tool call and is none."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """An answer: its words without the calls, and the calls in order."""

    content: str
    calls: tuple[Call, ...] = ()


Parser = Callable[[str], Parsed]


def parser_of(name: str) -> Parser:
    """The parser of a model family. An answer with a malformed call stays text as a whole, so that
    the harness may mend it (the parse_repair processor)."""
    parse = PARSERS[name]

    def parsed(text: str) -> Parsed:
        try:
            return parse(text)
        except (MalformedCall, RecursionError):
            return Parsed(text)

    return parsed


def same(one: Parsed, other: Parsed) -> bool:
    """Whether two answers say the same: equal calls, and equal words but for blanks at their ends
    and around thinking. A template writes the same answer with other blanks and other JSON."""
    return one.calls == other.calls and _trimmed(one.content) == _trimmed(other.content)


def _trimmed(text: str) -> str:
    return _THINKING.sub(r"\1", text).strip()


def plain(text: str) -> Parsed:
    """Text is text."""
    return Parsed(text)


def hermes(text: str) -> Parsed:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once or more, after any thinking."""
    thought, said = _after_thinking(text)
    calls = tuple(_call(_json(match[1]), ("arguments",)) for match in _HERMES.finditer(said))
    rest = _HERMES.sub("", said)
    if "<tool_call>" in rest:
        raise MalformedCall("a <tool_call> is not closed")
    return Parsed((thought + rest).strip(), calls) if calls else Parsed(text)


def llama3_json(text: str) -> Parsed:
    """An answer that is nothing but `{"name": …, "parameters": {…}}`, or several after `;`."""
    thought, said = _after_thinking(text)
    said = _PYTHON_TAGS.sub("", said).strip()
    if not said.startswith("{"):
        return Parsed(text)
    values = _values(said, ";")
    calls = tuple(_call(value, ("parameters", "arguments")) for value in values)
    return Parsed(thought.strip(), calls)


def mistral(text: str) -> Parsed:
    """`[TOOL_CALLS][{"name": …, "arguments": {…}}]`, or `[TOOL_CALLS]name[ARGS]{…}` once or more."""
    content, mark, said = text.partition(_MISTRAL)
    if not mark:
        return Parsed(text)
    said = said.strip()
    if said.startswith("["):
        values = _json(said)
        calls = tuple(_call(value, ("arguments",)) for value in values)
    else:
        calls = tuple(_named(part) for part in said.split(_MISTRAL))
    if not calls:
        raise MalformedCall("no call follows [TOOL_CALLS]")
    return Parsed(content.strip(), calls)


def pythonic(text: str) -> Parsed:
    """An answer that is nothing but `[name(key=value), …]`, values being Python literals."""
    thought, said = _after_thinking(text)
    said = _PYTHON_TAGS.sub("", said).strip()
    if not (said.startswith("[") and said.endswith(")]")):
        return Parsed(text)
    try:
        tree = ast.parse(said, mode="eval").body
        calls = tuple(_python_call(node) for node in getattr(tree, "elts", ()))
    except (SyntaxError, ValueError, TypeError, MemoryError) as error:
        raise MalformedCall(str(error)) from error
    return Parsed(thought.strip(), calls) if calls else Parsed(text)


PARSERS: Mapping[str, Parser] = MappingProxyType(
    {
        "hermes": hermes,
        "llama3_json": llama3_json,
        "mistral": mistral,
        "pythonic": pythonic,
        "none": plain,
    }
)


def _after_thinking(text: str) -> tuple[str, str]:
    """(thinking, the rest). What is called in a thought, a cut one too, is not called."""
    end = text.rfind("</think>")
    if end >= 0:
        return text[: end + len("</think>")], text[end + len("</think>") :]
    return (text, "") if "<think>" in text else ("", text)


def _call(value: Any, keys: tuple[str, ...]) -> Call:
    """A call from its JSON object. Raises MalformedCall."""
    given = next((value[k] for k in keys if k in value), None) if isinstance(value, dict) else None
    if not isinstance(given, dict) or not isinstance(value.get("name"), str):
        raise MalformedCall(f"expected an object with a name and {keys[0]}")
    return value["name"], given


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise MalformedCall(str(error)) from error


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _values(text: str, between: str) -> list[Any]:
    """JSON values with `between` and blanks between them; nothing else may stand there."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    values = []
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except ValueError as error:
            raise MalformedCall(str(error)) from error
        values.append(value)
        text = text[end:].strip()
        if text:
            text = text.removeprefix(between).lstrip()
    return values


def _named(part: str) -> Call:
    match = _MISTRAL_NAMED.match(part)
    given = _json(part[match.end() :]) if match else None
    if match is None or not isinstance(given, dict):
        raise MalformedCall("expected a name and a JSON object")
    return match[1], given


def _python_call(node: ast.AST) -> Call:
    if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, ast.Name):
        raise MalformedCall("expected calls with keyword arguments")
    given: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise MalformedCall("** is not taken")
        given[keyword.arg] = ast.literal_eval(keyword.value)
    # Through JSON, because a harness reads JSON: a set or bytes are no input.
    return node.func.id, _json(json.dumps(given, allow_nan=False))
