"""Chat templates of real model families (TRL's copies) on a tiny tokenizer: calls, thinking, joins."""

from __future__ import annotations

from pathlib import Path

import pytest
import trl
from test_token_capture import sample
from tiny_tokenizer import tokenizer

from harness.events import Message, ToolCallSpec, ToolSpec
from rollout.capture import TokenCapture, TokenError
from rollout.tokens import Renderer, TemplateRefusal

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
TOOL = ToolSpec(
    "look_up",
    "Looks a key up.",
    {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
)
MARKS = {
    "qwen3": ("<|im_end|>", ()),
    "qwen2_5": ("<|im_end|>", ()),
    "llama3_1": ("<|eot_id|>", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    "deepseek_r1_distill": ("<｜end▁of▁sentence｜>", ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")),
}  # fmt: skip
CALLS = {
    "qwen3": '<tool_call>\n{"name": "look_up", "arguments": {"key": "mug"}}\n</tool_call>',
    "qwen2_5": '<tool_call>\n{"name": "look_up", "arguments": {"key": "mug"}}\n</tool_call>',
    "llama3_1": '{"name": "look_up", "parameters": {"key": "mug"}}',
}
FAMILIES = sorted(CALLS)
TIGHT = {name: text.replace('": ', '":').replace(", ", ",") for name, text in CALLS.items()}


def renderer(family: str, **options: object) -> Renderer:
    made = tokenizer((TEMPLATES / f"{family}.jinja").read_text())
    made.add_special_tokens({"additional_special_tokens": list(MARKS[family][1])})
    made.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])  # words, not special
    return Renderer(made, **options)  # type: ignore[arg-type]


class Talk:
    """A conversation as an episode has it: prompts rendered, answers sampled, joins noted."""

    def __init__(self, family: str, **options: object) -> None:
        self.end = MARKS[family][0]
        self.renderer = renderer(family, **options)
        self.capture = TokenCapture(1.0)
        self.messages = [Message("system", "You act."), Message("user", "Find the mug.")]
        self.joins: list[str] = []
        self.calls = 0

    def answers(self, text: str, *, letters: bool = False) -> Message:
        """The model says `text`; letters: in an odd split of its words."""
        prompt = self.renderer.prompt(self.messages, (TOOL,), self.capture)
        pieces = list(text) if letters else [text]
        ids = [i for piece in pieces for i in self.renderer.encode(piece)]
        ids += self.renderer.encode(self.end)
        self.joins.append(self.capture.add(prompt, sample(*ids)))
        answer = self.renderer.answer(ids)
        calls = []
        for name, given in answer.calls:
            self.calls += 1
            calls.append(ToolCallSpec(f"call{self.calls:05d}", name, given))
        self.messages.append(Message("assistant", answer.content, tool_calls=tuple(calls)))
        return self.messages[-1]

    def tool(self, text: str) -> None:
        call = self.messages[-1].tool_calls[0]
        self.messages.append(Message("tool", text, tool_call_id=call.call_id))

    def user(self, text: str) -> None:
        self.messages.append(Message("user", text))


@pytest.mark.parametrize(
    ("family", "parser"),
    [
        ("qwen3", "hermes"),
        ("qwen2_5", "hermes"),
        ("llama3_1", "llama3_json"),
        ("deepseek_r1_distill", "none"),
    ],
)
def test_the_parser_is_the_one_that_reads_what_the_template_writes(
    family: str, parser: str
) -> None:
    assert renderer(family).tool_parser == parser
    assert renderer(family, tool_parser="none").tool_parser == "none"


def test_a_parser_that_does_not_fit_the_template_is_refused() -> None:
    with pytest.raises(TokenError, match=r"tool_parser 'mistral' reads"):
        renderer("qwen3", tool_parser="mistral")
    with pytest.raises(TokenError, match="writes no tool calls"):
        renderer("deepseek_r1_distill", tool_parser="hermes")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sampled_call_is_read_and_the_episode_stays_one_clean_segment(family: str) -> None:
    talk = Talk(family)
    first = talk.answers(CALLS[family])
    assert [(c.name, dict(c.input)) for c in first.tool_calls] == [("look_up", {"key": "mug"})]
    assert first.content == ""
    talk.tool("on the desk")
    talk.answers(CALLS[family])
    talk.tool("on the desk still")
    talk.answers("It is on the desk.")
    assert talk.joins == ["fork", "clean", "clean"]
    (segment,) = talk.capture.segments()
    assert "on the desk still" in talk.renderer._decode(tuple(segment.token_ids.tolist()), False)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_spelt_otherwise_than_the_template_writes_it_keeps_its_sampled_ids(
    family: str,
) -> None:
    talk = Talk(family)
    talk.answers(TIGHT[family], letters=True)
    talk.tool("on the desk")
    talk.answers("Found.")
    assert talk.joins == ["fork", "clean"]
    (segment,) = talk.capture.segments()
    trained = talk.renderer._decode(tuple(segment.token_ids[segment.loss_mask].tolist()), False)
    assert trained == f"{TIGHT[family]}{talk.end}Found.{talk.end}"


@pytest.mark.parametrize("family", FAMILIES)
def test_blanks_that_the_template_trims_are_kept_as_sampled(family: str) -> None:
    talk = Talk(family)
    talk.answers("  Looking around. \n")
    talk.user("Go on.")
    talk.answers("Done.")
    assert talk.joins == ["fork", "clean"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_the_harness_changed_forks(family: str) -> None:
    talk = Talk(family)
    said = talk.answers(CALLS[family])
    call = ToolCallSpec(said.tool_calls[0].call_id, "look_up", {"key": "cup"})
    talk.messages[-1] = Message("assistant", "", tool_calls=(call,))
    talk.tool("nowhere")
    talk.answers("Lost.")
    assert talk.joins == ["fork", "fork"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_malformed_call_is_text_and_stays_clean(family: str) -> None:
    talk = Talk(family)
    broken = CALLS[family].replace('"key"', "key")
    said = talk.answers(broken)
    assert said.tool_calls == ()
    assert said.content == broken
    talk.user("That was no call.")
    talk.answers("Sorry.")
    assert talk.joins == ["fork", "clean"]


def test_thinking_that_the_template_drops_forks_and_each_answer_trains_once() -> None:
    talk = Talk("qwen3")
    thought = "<think>\nWhere is it?\n</think>\n\n"
    talk.answers(f"{thought}On the desk.")
    talk.user("And the lamp?")
    talk.answers(f"{thought}In the hall.")
    assert talk.joins == ["fork", "fork"]
    first, second = talk.capture.segments()
    text = talk.renderer._decode(tuple(second.token_ids.tolist()), False)
    assert text.count("Where is it?") == 1
    assert "On the desk." in text
    assert int(first.loss_mask.sum()) == len(
        talk.renderer.encode(f"{thought}On the desk.{talk.end}")
    )


def test_thinking_is_kept_between_the_calls_of_one_turn() -> None:
    talk = Talk("qwen3")
    said = talk.answers(f"<think>Where is it?</think>{TIGHT['qwen3']}")
    assert said.content == "<think>Where is it?</think>"
    assert len(said.tool_calls) == 1
    talk.tool("on the desk")
    talk.answers("<think>\nGood.\n</think>\n\nOn the desk.")
    assert talk.joins == ["fork", "clean"]


def test_a_template_that_always_drops_thinking_forks() -> None:
    talk = Talk("deepseek_r1_distill")
    talk.answers("<think>Where?</think>On the desk.")
    talk.user("Sure?")
    talk.answers("Yes.")
    assert talk.joins == ["fork", "fork"]


def test_template_options_reach_the_template() -> None:
    quiet = renderer("qwen3", template_options={"enable_thinking": False})
    assert quiet.tool_parser == "hermes"
    assert quiet.text([Message("user", "Hi.")]).endswith("<think>\n\n</think>\n\n")


def test_several_calls_are_text_where_the_template_takes_one_a_turn() -> None:
    talk = Talk("llama3_1")
    said = talk.answers(f"{CALLS['llama3_1']}; {CALLS['llama3_1']}")
    assert said.tool_calls == ()
    assert "look_up" in said.content
    two = tuple(ToolCallSpec(f"call{i}", "look_up", {"key": "k"}) for i in range(2))
    with pytest.raises(TemplateRefusal, match="single tool-calls"):
        talk.renderer.text([Message("user", "x"), Message("assistant", "", tool_calls=two)])
    talk = Talk("qwen3")
    assert len(talk.answers(f"{CALLS['qwen3']}\n{CALLS['qwen3']}").tool_calls) == 2
