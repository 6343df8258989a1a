"""Tool calls in sampled text: golden texts a model family, and what stays text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.tool_calls import PARSERS, Parsed, parser_of, same

LOOK = ("look_up", {"key": "a b"})
PUT = ("put", {"key": "k", "count": 2, "flags": [True, None], "deep": {"x": 1.5}})

READ = [
    ("hermes", '<tool_call>\n{"name": "look_up", "arguments": {"key": "a b"}}\n</tool_call>', ""),
    ("hermes", '<tool_call>{"arguments":{"key":"a b"},"name":"look_up"}</tool_call>', ""),
    (
        "hermes",
        '<think>\nI could <tool_call>{"name": "no", "arguments": {}}</tool_call>.\n</think>\n\n'
        'Looking.\n<tool_call>\n{"name": "look_up", "arguments": {"key": "a b"}}\n</tool_call>',
        '<think>\nI could <tool_call>{"name": "no", "arguments": {}}</tool_call>.\n</think>\n\n'
        "Looking.",
    ),
    ("llama3_json", '{"name": "look_up", "parameters": {"key": "a b"}}', ""),
    ("llama3_json", '<|python_tag|>{"name": "look_up", "arguments": {"key": "a b"}}', ""),
    ("mistral", '[TOOL_CALLS][{"name": "look_up", "arguments": {"key": "a b"}}]', ""),
    ("mistral", 'Wait. [TOOL_CALLS]look_up[ARGS]{"key": "a b"}', "Wait."),
    ("mistral", '[TOOL_CALLS]look_up[CALL_ID]abcdefghi[ARGS]{"key": "a b"}', ""),
    ("pythonic", "[look_up(key='a b')]", ""),
    ("pythonic", '<|python_start|>[look_up(key="a b")]<|python_end|>', ""),
]


@pytest.mark.parametrize(("family", "text", "content"), READ)
def test_a_call_is_read_as_its_family_writes_it(family: str, text: str, content: str) -> None:
    assert parser_of(family)(text) == Parsed(content, (LOOK,))


SEVERAL = {
    "hermes": f'<tool_call>{{"name": "look_up", "arguments": {json.dumps(LOOK[1])}}}</tool_call>\n'
    f'<tool_call>{{"name": "put", "arguments": {json.dumps(PUT[1])}}}</tool_call>',
    "llama3_json": f'{{"name": "look_up", "parameters": {json.dumps(LOOK[1])}}}; '
    f'{{"name": "put", "parameters": {json.dumps(PUT[1])}}}',
    "mistral": f"[TOOL_CALLS]look_up{json.dumps(LOOK[1])}[TOOL_CALLS]put{json.dumps(PUT[1])}",
    "pythonic": "[look_up(key='a b'), put(key='k', count=2, flags=[True, None], deep={'x': 1.5})]",
}


@pytest.mark.parametrize("family", sorted(SEVERAL))
def test_several_calls_keep_their_order_and_their_types(family: str) -> None:
    assert parser_of(family)(SEVERAL[family]) == Parsed("", (LOOK, PUT))


LEFT = [
    ("hermes", "just words"),
    ("hermes", '<tool_call>{"name": "look_up", "arguments": {"key": }}</tool_call>'),
    ("hermes", '<tool_call>{"name": "look_up", "arguments": "key"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "look_up", "arguments": {"key": NaN}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "a", "arguments": {}}</tool_call><tool_call>{"name": "b"'),
    ("hermes", '<think>never closed <tool_call>{"name": "a", "arguments": {}}</tool_call>'),
    ("llama3_json", 'Sure: {"name": "look_up", "parameters": {}}'),
    ("llama3_json", '{"name": "look_up", "parameters": {}} and more'),
    ("llama3_json", '{"answer": 3}'),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS][1]"),
    ("mistral", "[TOOL_CALLS]look_up[ARGS]{"),
    ("pythonic", "[1, 2]"),
    ("pythonic", "[look_up('positional')]"),
    ("pythonic", "[look_up(key=open('x'))]"),
    ("pythonic", "[os.system(x='y')]"),
    ("pythonic", "[look_up(key={1, 2})]"),
    ("none", '<tool_call>{"name": "look_up", "arguments": {}}</tool_call>'),
]


@pytest.mark.parametrize(("family", "text"), LEFT)
def test_what_is_no_well_formed_call_stays_text_for_the_harness_to_mend(
    family: str, text: str
) -> None:
    assert parser_of(family)(text) == Parsed(text)


def test_deep_nesting_is_text_too() -> None:
    deep = '<tool_call>{"name": "a", "arguments": {"x": ' + "[" * 100_000
    assert parser_of("hermes")(deep + "</tool_call>").calls == ()
    assert parser_of("llama3_json")('{"a":' * 100_000).calls == ()
    assert parser_of("pythonic")("[a(x=" + "(" * 50_000 + ")]").calls == ()


@given(st.text(max_size=80), st.sampled_from(sorted(PARSERS)))
def test_any_text_parses(text: str, family: str) -> None:
    parsed = parser_of(family)(text)
    assert parsed.calls or parsed.content == text


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
            max_leaves=5,
        ),
        max_size=3,
    )
)
def test_any_json_input_survives(given_: dict) -> None:
    text = json.dumps(given_)
    if "</tool_call>" not in text:
        wrapped = f'<tool_call>{{"name": "f", "arguments": {text}}}</tool_call>'
        assert parser_of("hermes")(wrapped).calls == (("f", given_),)
    assert parser_of("llama3_json")(f'{{"name": "f", "parameters": {text}}}').calls == (
        ("f", given_),
    )


def test_answers_are_the_same_up_to_blanks_at_the_ends_and_around_thinking() -> None:
    one = Parsed("<think>\nso\n</think>\n\nGoing. ", (LOOK,))
    assert same(one, Parsed("<think>so</think>Going.", (LOOK,)))
    assert not same(one, Parsed("Going.", (LOOK,)))
    assert not same(one, Parsed("<think>so</think>Going .", (LOOK,)))
    assert not same(one, Parsed("<think>so</think>Going.", (PUT,)))
