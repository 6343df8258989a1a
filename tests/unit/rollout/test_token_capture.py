"""Token in, token out: rendering, and each sampled token in exactly one segment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizer import TOOLS, tokenizer
from tokenizers import AddedToken

from harness.events import Message, ToolCallSpec, ToolSpec
from rollout.capture import REALIGN_LIMIT, TokenCapture, TokenError
from rollout.policy.base import Sample
from rollout.tokens import Renderer
from rollout.trajectory import Segment


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(tokenizer())


def sample(*ids: int, version: int = 0) -> Sample:
    return Sample(tuple(ids), tuple(-0.5 - i / 8 for i in range(len(ids))), "stop", version)


def test_prompt_ids_are_those_of_the_whole_rendered_text(renderer: Renderer) -> None:
    reference = tokenizer()
    messages = [
        Message("system", "You act."),
        Message("user", "On the desk 1,\n\n you see é日本  a mug 2."),
        Message("assistant", "take mug 2"),
        Message("user", "text with <|im_end|> in it"),
    ]
    expected = reference.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert renderer.prompt(messages) == list(expected)
    assert renderer.prompt(messages) == list(expected)  # and from the memo


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60))
def test_pieces_encode_as_the_whole_text_does(text: str) -> None:
    renderer = _renderer()
    text = text.replace("x", "<|im_start|>")
    expected = renderer._tokenizer.encode(text, add_special_tokens=False)
    assert renderer.encode(text) == list(expected)


_CACHED: list[Renderer] = []


def _renderer() -> Renderer:
    if not _CACHED:
        _CACHED.append(Renderer(tokenizer()))
    return _CACHED[0]


def test_decoding_drops_special_tokens_only(renderer: Renderer) -> None:
    ids = renderer.encode("take mug 2<|im_end|>")
    assert renderer.decode(ids) == "take mug 2"


def test_sampling_stops_at_the_end_of_a_turn_and_of_the_text(renderer: Renderer) -> None:
    assert renderer.stop_ids == (3, 2)


def test_tools_tool_calls_and_results_reach_the_template() -> None:
    renderer = Renderer(tokenizer(TOOLS), tool_parser="none")
    text = renderer.text(
        [
            Message("user", "go"),
            Message("assistant", "", tool_calls=(ToolCallSpec("c1", "act", {"command": "look"}),)),
            Message("tool", "A kitchen.", tool_call_id="c1"),
        ],
        [ToolSpec("act", "Act.", {"type": "object"})],
    )
    assert '[act {"type": "object"}]' in text
    assert '!act{"command": "look"}' in text
    assert "<|im_start|>tool\nA kitchen.#c1<|im_end|>" in text


def test_a_tokenizer_without_a_chat_template_is_refused() -> None:
    with pytest.raises(TokenError, match="no chat template"):
        Renderer(tokenizer(None))


def test_a_special_token_that_swallows_spaces_is_refused() -> None:
    made = tokenizer()
    made.add_special_tokens(
        {"additional_special_tokens": [AddedToken("<|im_start|>", lstrip=True, special=True)]}
    )
    with pytest.raises(TokenError, match="next to a special token"):
        Renderer(made)


def test_an_extending_prompt_is_clean_and_adds_only_its_suffix() -> None:
    capture = TokenCapture(0.7)
    assert capture.add([1, 2, 3], sample(10, 11, version=4)) == "fork"
    assert capture.add([1, 2, 3, 10, 11, 5, 6], sample(12, version=5)) == "clean"
    (only,) = capture.segments()
    assert only.token_ids.tolist() == [1, 2, 3, 10, 11, 5, 6, 12]
    assert only.loss_mask.tolist() == [False] * 3 + [True] * 2 + [False] * 2 + [True]
    assert only.versions.tolist() == [-1, -1, -1, 4, 4, -1, -1, 5]
    assert only.logprobs.tolist() == [0, 0, 0, -0.5, -0.625, 0, 0, -0.5]
    assert only.temperature == 0.7
    assert only.token_ids.dtype == np.int32
    assert only.logprobs.dtype == np.float32


def test_a_changed_unsampled_tail_is_realigned() -> None:
    capture = TokenCapture(1.0)
    capture.add([1, 2], sample(10))
    assert capture.prompt([1, 2, 10, 7, 7, 7]) == "clean"  # its answer never came
    assert capture.add([1, 2, 10, 7, 8], sample(11)) == "realign"
    (only,) = capture.segments()
    assert only.token_ids.tolist() == [1, 2, 10, 7, 8, 11]
    assert capture.joins == {"clean": 1, "realign": 1, "fork": 1}


def test_a_long_unsampled_tail_forks() -> None:
    capture = TokenCapture(1.0)
    capture.add([1], sample(10))
    capture.prompt([1, 10, *[7] * (REALIGN_LIMIT + 1)])
    assert capture.add([1, 10, 8], sample(11)) == "fork"


def test_an_edit_of_history_forks_and_nothing_is_trained_twice() -> None:
    capture = TokenCapture(1.0)
    capture.add([1, 2, 3], sample(10, 11))
    assert capture.add([1, 2, 10, 11, 4], sample(12)) == "fork"
    first, second = capture.segments()
    assert first.token_ids.tolist() == [1, 2, 3, 10, 11]
    assert second.token_ids.tolist() == [1, 2, 10, 11, 4, 12]
    assert second.loss_mask.tolist() == [False] * 5 + [True]


def test_the_same_prompt_sampled_twice_gives_two_segments() -> None:
    capture = TokenCapture(1.0)
    capture.add([1, 2], sample(10))
    assert capture.add([1, 2], sample(11)) == "fork"
    assert [s.token_ids.tolist() for s in capture.segments()] == [[1, 2, 10], [1, 2, 11]]


def test_interleaved_contexts_each_stay_one_segment() -> None:
    capture = TokenCapture(1.0)
    capture.add([1, 2], sample(10))
    capture.add([5, 6], sample(20))
    assert capture.add([1, 2, 10, 3], sample(11)) == "clean"
    assert capture.add([5, 6, 20, 7], sample(21)) == "clean"
    assert sorted(s.token_ids.tolist() for s in capture.segments()) == [
        [1, 2, 10, 3, 11],
        [5, 6, 20, 7, 21],
    ]


def test_a_sample_that_does_not_train_is_context_only() -> None:
    capture = TokenCapture(1.0)
    capture.add([1, 2], sample(20, 21), trains=False)
    assert capture.segments() == ()
    assert capture.add([1, 2, 20, 21, 3], sample(10, version=4)) == "clean"
    (only,) = capture.segments()
    assert only.token_ids.tolist() == [1, 2, 20, 21, 3, 10]
    assert only.loss_mask.tolist() == [False] * 5 + [True]
    assert only.logprobs.tolist() == [0, 0, 0, 0, 0, -0.5]
    assert only.versions.tolist() == [-1, -1, -1, -1, -1, 4]
    # A judge asked in the middle leaves no mark on the conversation that goes on.
    capture.add([1, 2, 20, 21, 3, 10, 7], sample(30), trains=False)
    assert capture.add([1, 2, 20, 21, 3, 10, 8], sample(11)) == "realign"
    (only,) = capture.segments()
    assert only.token_ids.tolist() == [1, 2, 20, 21, 3, 10, 8, 11]


def test_an_unanswered_tail_is_left_out() -> None:
    capture = TokenCapture(1.0)
    capture.add([1], sample(10))
    capture.prompt([1, 10, 4, 5])
    assert capture.segments()[0].token_ids.tolist() == [1, 10]
    capture = TokenCapture(1.0)
    capture.prompt([1, 2])
    assert capture.segments() == ()


def test_misuse_is_named() -> None:
    capture = TokenCapture(1.0)
    with pytest.raises(TokenError, match="empty"):
        capture.prompt([])
    with pytest.raises(TokenError, match="without a prompt"):
        capture.sampled(sample(1))
    with pytest.raises(TokenError, match="2 tokens and 1 log-probs"):
        capture.add([1], Sample((1, 2), (-1.0,), "stop", 0))


def test_an_odd_split_of_a_word_is_kept_when_the_conversation_goes_on(renderer: Renderer) -> None:
    """The model may write "take" as "t", "a", "k", "e"; encoded again it would be other ids."""
    odd = [i for letter in "take mug" for i in renderer.encode(letter)]
    assert odd != renderer.encode("take mug")
    messages = [Message("user", "go")]
    capture = TokenCapture(1.0)
    capture.add(renderer.prompt(messages, after=capture), sample(*odd, 2))
    messages += [Message("assistant", "take mug"), Message("user", "Taken.")]
    assert capture.add(renderer.prompt(messages, after=capture), sample(9, 2)) == "clean"
    without = TokenCapture(1.0)
    without.add(renderer.prompt(messages[:1]), sample(*odd, 2))
    assert without.add(renderer.prompt(messages), sample(9, 2)) == "fork"


def test_a_cut_answer_is_continued_by_the_closing_token(renderer: Renderer) -> None:
    capture = TokenCapture(1.0)
    messages = [Message("user", "go")]
    first = renderer.prompt(messages, after=capture)
    words = renderer.encode("take")
    capture.add(first, Sample(tuple(words), (-1.0,) * len(words), "length", 0))
    messages += [Message("assistant", "take"), Message("user", "?")]
    second = renderer.prompt(messages, after=capture)
    assert second == renderer.prompt(messages)
    assert capture.add(second, sample(2)) == "clean"


def test_a_processor_that_edits_the_answer_forks(renderer: Renderer) -> None:
    capture = TokenCapture(1.0)
    messages = [Message("user", "go")]
    capture.add(renderer.prompt(messages, after=capture), sample(*renderer.encode("take mug"), 2))
    messages += [Message("assistant", "TAKE MUG"), Message("user", "?")]
    prompt = renderer.prompt(messages, after=capture)
    assert prompt == renderer.prompt(messages)
    assert capture.add(prompt, sample(2)) == "fork"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_sampled_token_is_in_one_segment_and_prompts_are_reproduced(
    data: st.DataObject,
) -> None:
    """Over any mix of continued, edited, repeated and unanswered prompts; and no sampled token of
    a call that does not train."""
    token = st.integers(1, 4)  # few values, so that prompts collide by chance
    capture = TokenCapture(1.0)
    calls: list[tuple[list[int], list[int]]] = []
    training: list[tuple[list[int], list[int]]] = []
    serial = 1000  # each sampled token has an id of its own
    for _ in range(data.draw(st.integers(1, 8))):
        base: list[int] = []
        if calls:
            before, answer = data.draw(st.sampled_from(calls))
            base = before + answer
            if data.draw(st.booleans()):
                base = base[: data.draw(st.integers(0, len(base)))]
        prompt = base + data.draw(st.lists(token, min_size=0 if base else 1, max_size=5))
        capture.prompt(prompt)
        if data.draw(st.integers(0, 3)) == 0:
            continue
        answer = list(range(serial, serial + data.draw(st.integers(1, 3))))
        serial += len(answer)
        trains = data.draw(st.booleans())
        capture.sampled(Sample(tuple(answer), (-1.0,) * len(answer), "stop", len(calls)), trains)
        calls.append((prompt, answer))
        if trains:
            training.append((prompt, answer))
    segments = capture.segments()
    trained = [int(i) for s in segments for i in s.token_ids[s.loss_mask]]
    assert sorted(trained) == [i for _, answer in training for i in answer]
    for prompt, answer in training:
        home = _segment_of(segments, answer[0])
        at = home.token_ids.tolist().index(answer[0])
        while not home.loss_mask[at]:  # the id may be read before, as history
            at = home.token_ids.tolist().index(answer[0], at + 1)
        assert home.token_ids[:at].tolist() == prompt
        assert home.token_ids[at : at + len(answer)].tolist() == answer


def _segment_of(segments: tuple[Segment, ...], token: int) -> Segment:
    return next(s for s in segments if token in s.token_ids[s.loss_mask])


def test_a_base_model_reads_a_transcript_and_its_answer_ends_with_the_line() -> None:
    renderer = Renderer(tokenizer(None), template="plain")
    messages = [Message("system", "You act."), Message("user", "Look around.")]
    assert renderer.text(messages) == "System: You act.\nUser: Look around.\nAssistant:"
    (line_break,) = renderer.encode("\n")
    assert line_break in renderer.stop_ids
    capture = TokenCapture(1.0)
    prompt = renderer.prompt(messages, (), capture)
    answer = [*renderer.encode(" look around"), line_break]
    capture.add(prompt, sample(*answer))
    assert renderer.decode(answer) == " look around"
    messages += [Message("assistant", renderer.decode(answer)), Message("user", "A desk 1.")]
    following = renderer.prompt(messages, (), capture)
    # The blank that was sampled stays, though the transcript would write the answer without.
    assert following[: len(prompt) + len(answer)] == [*prompt, *answer]
    assert capture.add(following, sample(*answer)) == "clean"
