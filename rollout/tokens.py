"""Token in, token out: chat messages to prompt ids, sampled ids to segments that may train."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from harness.events import Message, ToolSpec
from rollout.policy.base import Sample
from rollout.trajectory import Segment

Join = Literal["clean", "realign", "fork"]

REALIGN_LIMIT = 32
"""Longest tail without a trainable token, in tokens, that a new prompt may replace in a segment."""

PROBES: tuple[tuple[Message, ...], ...] = (
    (Message("user", " Look around.\n\n  Two  spaces, é and 日本. "),),
    (
        Message("system", "You act in a house."),
        Message("user", "> go to desk 1\nOn the desk 1, you see a mug 2."),
        Message("assistant", "take mug 2 from desk 1"),
        Message("user", "Nothing happens."),
    ),
)


class TokenError(ValueError):
    """A tokenizer or chat template that cannot serve token in, token out."""


class Renderer:
    """Messages to prompt ids by the tokenizer's chat template, and sampled ids back to text.

    The template renders the text of every call; its ids are looked up piece by piece between
    special tokens, so text that was seen before is never encoded twice.

    stop_ids: sampling ends after any of them: the end of sequence and the token that the template
    writes after an assistant turn. Raises TokenError for a tokenizer without a chat template, or
    one whose ids depend on text across a special token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise TokenError(
                f"tokenizer {tokenizer.name_or_path!r} is a {type(tokenizer).__name__}; expected a "
                "PreTrainedTokenizerFast (save a tokenizer.json)"
            )
        if not tokenizer.chat_template:
            raise TokenError(
                f"tokenizer {tokenizer.name_or_path!r} has no chat template; set "
                "tokenizer.chat_template and save it with the model"
            )
        self._tokenizer = tokenizer
        tokenizer.backend_tokenizer.no_truncation()  # saved settings would cut prompts silently
        tokenizer.backend_tokenizer.no_padding()
        added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
        self._special = added
        # Longest first, as the tokenizer itself matches them.
        names = sorted(added, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None
        self._encode: Callable[[str], tuple[int, ...]] = lru_cache(1 << 16)(self._encode_piece)
        self._decode: Callable[[tuple[int, ...], bool], str] = lru_cache(1 << 16)(self._decode_ids)
        self.stop_ids = self._find_stop_ids()
        self._check_pieces()

    @classmethod
    def from_pretrained(cls, directory: str) -> Renderer:
        """The renderer of a saved tokenizer (tokenizer files and chat template)."""
        tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        return cls(tokenizer)

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        after: TokenCapture | None = None,
    ) -> list[int]:
        """Prompt ids of a conversation, ending where the assistant is to speak.

        after: the capture of the episode so far. Where the conversation goes on from one of its
        contexts, word for word, that context's own ids are kept and only the rest is encoded: a
        model may sample another split of a word than the tokenizer would choose.
        """
        text = self.text(messages, tools)
        if after is None:
            return self.encode(text)
        for context in after.contexts():
            if not context.sample:
                continue
            if not context.text:
                context.text = self._decode(tuple(context.ids[: context.prompt_length]), False)
            seen = context.text + self._decode(context.sample, False)
            if text.startswith(seen):
                ids = [*context.ids, *self.encode(text[len(seen) :])]
                break
        else:
            ids = self.encode(text)
        after.expect(ids, text)
        return ids

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
        """The conversation as the template writes it, with the generation prompt."""
        rendered = self._tokenizer.apply_chat_template(
            [_as_template(message) for message in messages],
            tools=[_as_function(tool) for tool in tools] or None,
            add_generation_prompt=True,
            tokenize=False,
        )
        return str(rendered)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, special tokens recognised, none added."""
        if self._split is None:
            return list(self._encode(text))
        ids: list[int] = []
        for piece in self._split.split(text):
            if piece in self._special:
                ids.append(self._special[piece])
            elif piece:
                ids.extend(self._encode(piece))
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled ids, special tokens dropped."""
        return self._decode(tuple(token_ids), True)

    def _encode_piece(self, text: str) -> tuple[int, ...]:
        # The Rust tokenizer itself: transformers' call around it costs as much again.
        return tuple(self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)

    def _decode_ids(self, token_ids: tuple[int, ...], skip_special: bool) -> str:
        return str(
            self._tokenizer.decode(
                list(token_ids),
                skip_special_tokens=skip_special,
                clean_up_tokenization_spaces=False,
            )
        )

    def _find_stop_ids(self) -> tuple[int, ...]:
        """End of sequence, and the special token right after an assistant's words."""
        mark = "words of the assistant"
        messages = [_as_template(Message("user", "Hi.")), _as_template(Message("assistant", mark))]
        text = str(self._tokenizer.apply_chat_template(messages, tokenize=False))
        after = text.rpartition(mark)[2].lstrip()
        found = self._split.match(after) if self._split else None
        ids = [self._tokenizer.eos_token_id, self._special[found.group()] if found else None]
        stops = tuple(dict.fromkeys(number for number in ids if number is not None))
        if not stops:
            raise TokenError(
                f"tokenizer {self._tokenizer.name_or_path!r} has neither an end-of-sequence token "
                "nor a special token after assistant turns; sampling would never stop by itself"
            )
        return stops

    def _check_pieces(self) -> None:
        for messages in PROBES:
            text = self.text(messages)
            whole = self._tokenizer.encode(text, add_special_tokens=False)
            if self.encode(text) != list(whole):
                raise TokenError(
                    f"tokenizer {self._tokenizer.name_or_path!r} encodes text differently next to "
                    "a special token (a prefix-space or stripping rule); use a byte-level tokenizer "
                    "without add_prefix_space"
                )


def _as_template(message: Message) -> dict[str, Any]:
    """A message in the form that chat templates take (that of function-calling APIs)."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "type": "function",
                "id": call.call_id,
                "function": {"name": call.name, "arguments": dict(call.input)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    return out


def _as_function(tool: ToolSpec) -> dict[str, Any]:
    # Through JSON, because frozen mappings are no dicts to a template.
    parameters = json.loads(json.dumps(tool.parameters, default=dict))
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": parameters,
        },
    }


@dataclass(slots=True)
class Context:
    """A segment that still grows. `sample`: the last ids sampled, () after a prompt alone."""

    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    sample: tuple[int, ...] = ()
    prompt_length: int = 0
    text: str = ""  # of the ids before `sample`, where the renderer noted it

    def cut(self, length: int) -> None:
        for values in (self.ids, self.mask, self.logprobs, self.versions):
            del values[length:]

    def append(self, ids: Iterable[int]) -> None:
        """Tokens that the model reads."""
        count = len(self.ids)
        self.ids.extend(ids)
        count = len(self.ids) - count
        self.mask.extend([False] * count)
        self.logprobs.extend([0.0] * count)
        self.versions.extend([-1] * count)


def classify(context: Context, prompt: Sequence[int]) -> tuple[Join, int]:
    """How a prompt relates to a context, and how many leading tokens they share.

    clean: it extends the context. realign: it differs only in the context's tail of at most
    REALIGN_LIMIT tokens, none of them trainable. fork: anything else.
    """
    ids = context.ids
    length = len(ids)
    if list(prompt[:length]) == ids:
        return "clean", length
    shared = next(
        (i for i, (a, b) in enumerate(zip(ids, prompt, strict=False)) if a != b),
        min(length, len(prompt)),
    )
    if length - shared <= REALIGN_LIMIT and shared and not any(context.mask[shared:]):
        return "realign", shared
    return "fork", shared


class TokenCapture:
    """The segments of one episode, from its prompts and samples in the order of the calls.

    Each sampled token is trainable in exactly one segment, those of a call that does not train in
    none. Calls may interleave several contexts (a sub-agent's among the main agent's): a prompt
    continues the latest one that it extends.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._contexts: list[Context] = []
        self._expected: tuple[list[int], str] | None = None
        self._current: Context | None = None
        self.joins: dict[Join, int] = {"clean": 0, "realign": 0, "fork": 0}

    def contexts(self) -> Iterable[Context]:
        """Open contexts, the latest first."""
        return reversed(self._contexts)

    def expect(self, ids: list[int], text: str) -> None:
        """Note the text of a prompt that is about to come (by the renderer)."""
        self._expected = (ids, text)

    def prompt(self, prompt: Sequence[int]) -> Join:
        """A prompt is sent. The first of an episode counts as a fork."""
        if not len(prompt):
            raise TokenError("a prompt is empty; the first token of a segment cannot be sampled")
        context, join, shared = self._find(prompt)
        if join == "fork":
            context = Context()
        else:
            self._contexts.remove(context)
            context.cut(shared)
        self._contexts.append(context)
        context.append(prompt[len(context.ids) :])
        context.sample = ()
        context.prompt_length = len(context.ids)
        known = self._expected
        context.text = known[1] if known is not None and known[0] == list(prompt) else ""
        self._expected = None
        self._current = context
        self.joins[join] += 1
        return join

    def sampled(self, sample: Sample, trains: bool = True) -> None:
        """The answer to the last prompt. Raises TokenError without one, or on unequal lengths.

        trains: False keeps the tokens as context only, like those that the model reads: loss mask
        False, log-prob 0, version -1.
        """
        context = self._current
        if context is None:
            raise TokenError("a sample came without a prompt")
        if len(sample.token_ids) != len(sample.logprobs):
            raise TokenError(
                f"a sample has {len(sample.token_ids)} tokens and {len(sample.logprobs)} log-probs; "
                "every sampled token needs the engine's log-prob"
            )
        if trains:
            count = len(sample.token_ids)
            context.ids.extend(sample.token_ids)
            context.mask.extend([True] * count)
            context.logprobs.extend(sample.logprobs)
            context.versions.extend([sample.version] * count)
        else:
            context.append(sample.token_ids)
        context.sample = tuple(sample.token_ids)
        self._current = None

    def add(self, prompt: Sequence[int], sample: Sample, trains: bool = True) -> Join:
        """`prompt` and `sampled` in one."""
        join = self.prompt(prompt)
        self.sampled(sample, trains)
        return join

    def segments(self) -> tuple[Segment, ...]:
        """The segments with a trainable token, the one prompted last at the end.

        What follows a segment's last trainable token is left out: nothing is learnt from it.
        """
        out = []
        for context in self._contexts:
            mask = np.array(context.mask, dtype=np.bool_)
            if not mask.any():
                continue
            end = int(np.flatnonzero(mask)[-1]) + 1
            out.append(
                Segment(
                    token_ids=np.array(context.ids[:end], dtype=np.int32),
                    loss_mask=mask[:end],
                    logprobs=np.array(context.logprobs[:end], dtype=np.float32),
                    versions=np.array(context.versions[:end], dtype=np.int32),
                    temperature=self._temperature,
                )
            )
        return tuple(out)

    def _find(self, prompt: Sequence[int]) -> tuple[Context, Join, int]:
        realign: tuple[Context, Join, int] | None = None
        for context in reversed(self._contexts):
            join, shared = classify(context, prompt)
            if join == "clean":
                return context, join, shared
            if join == "realign" and realign is None:
                realign = (context, join, shared)
        return realign or (Context(), "fork", 0)
