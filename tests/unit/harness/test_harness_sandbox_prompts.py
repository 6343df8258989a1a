"""Prompts on the wire: what is kept is not sent again, and what arrives is what was asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.events import Message, ToolCallSpec, ToolSpec
from harness.host import ModelRequest
from harness.jsonvalue import FrozenDict
from harness.sandbox.prompts import MAX_PROMPT, MAX_ROLES, PromptReader, PromptWriter
from harness.sandbox.protocol import MAX_TEXT, ProtocolError, decode, encode

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
count = st.integers(0, (1 << 31) - 1)
scalar = st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | text
inputs = st.dictionaries(text, scalar | st.dictionaries(text, scalar, max_size=2), max_size=2)
calls = st.lists(st.builds(ToolCallSpec, text, text, inputs), max_size=2).map(tuple)
texts = st.lists(text, max_size=3).map(tuple)
roles = st.sampled_from(["system", "user", "assistant", "tool"])
message = st.builds(Message, roles, text, texts, calls, st.none() | text)
# Few different messages, so that requests share some.
some = st.lists(message, min_size=1, max_size=3)
tools = st.lists(st.builds(ToolSpec, text, text, inputs), max_size=2).map(tuple)


def there(writer: PromptWriter, reader: PromptReader, request: ModelRequest) -> ModelRequest:
    record = decode(encode({"record": writer.dump(request)})[:-1])["record"]
    writer.sent(request)
    return reader.load(record)


@settings(max_examples=60, deadline=None)
@given(some, st.data())
def test_requests_arrive_as_they_were_sent(known: list[Message], data: st.DataObject) -> None:
    writer, reader = PromptWriter(), PromptReader()
    messages = st.lists(st.sampled_from(known), max_size=5).map(tuple)
    role = st.sampled_from(["main", "judge"])
    request = st.builds(ModelRequest, count, messages, tools, role, st.none() | st.integers(1, 9))
    for asked in data.draw(st.lists(request, max_size=6)):
        assert there(writer, reader, asked) == asked


HISTORY = tuple(Message("user", f"turn {i}") for i in range(5))
TOOLS = (ToolSpec("look", "", FrozenDict(type="object")),)


def test_only_what_is_new_is_sent() -> None:
    writer, reader = PromptWriter(), PromptReader()

    def sizes(*messages: Message, role: str = "main") -> tuple[int, int, bool]:
        request = ModelRequest(0, messages, TOOLS, role)
        record = writer.dump(request)
        assert there(writer, reader, request) == request
        return record["kept"], len(record["messages"]), record["tools"] is not None

    assert sizes(*HISTORY[:3]) == (0, 3, True)
    assert sizes(*HISTORY) == (3, 2, False)
    assert sizes(HISTORY[0], role="judge") == (0, 1, True)  # each role has its own
    assert sizes(*HISTORY) == (5, 0, False)
    assert sizes(*HISTORY[:4], replace(HISTORY[4], content="a menu")) == (4, 1, False)
    assert sizes(HISTORY[0], HISTORY[4]) == (1, 1, False)  # a window


def test_the_kept_messages_are_the_same_objects() -> None:
    writer, reader = PromptWriter(), PromptReader()
    first = there(writer, reader, ModelRequest(0, HISTORY[:4]))
    second = there(writer, reader, ModelRequest(1, HISTORY))
    assert all(a is b for a, b in zip(first.messages, second.messages, strict=False))


def test_a_request_that_could_not_be_sent_changes_nothing() -> None:
    writer, reader = PromptWriter(), PromptReader()
    there(writer, reader, ModelRequest(0, HISTORY[:2]))
    writer.dump(ModelRequest(1, HISTORY))  # and encoding fails, say
    asked = ModelRequest(1, HISTORY[:4])
    assert there(writer, reader, asked) == asked


def test_more_roles_than_are_kept_arrive_too() -> None:
    writer, reader = PromptWriter(), PromptReader()
    for i in range(2 * MAX_ROLES):
        asked = ModelRequest(0, HISTORY, (), f"role {i % (MAX_ROLES + 5)}")
        assert there(writer, reader, asked) == asked


RECORD: dict[str, Any] = {
    "step": 0,
    "kept": 0,
    "messages": [],
    "tools": None,
    "role": "main",
    "max_tokens": None,
}


@pytest.mark.parametrize("kept", [1, -1, True, 1.0, None, "0"])
def test_what_was_never_sent_cannot_be_kept(kept: object) -> None:
    with pytest.raises(ProtocolError, match="kept"):
        PromptReader().load({**RECORD, "kept": kept})


def test_a_prompt_cannot_grow_without_end() -> None:
    reader = PromptReader()
    long = {
        "role": "user",
        "content": "x" * MAX_TEXT,
        "choices": [],
        "tool_calls": [],
        "tool_call_id": None,
    }
    fits = MAX_PROMPT // MAX_TEXT - 1
    for kept in range(fits):
        reader.load({**RECORD, "kept": kept, "messages": [long]})
    with pytest.raises(ProtocolError, match="at most"):
        reader.load({**RECORD, "kept": fits, "messages": [long]})
