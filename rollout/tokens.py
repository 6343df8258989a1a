"""Chat messages to prompt ids by a chat template, and sampled ids back to words and tool calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from harness.events import EMPTY, Message, ToolCallSpec, ToolSpec
from harness.function_calling import as_function, for_template
from rollout.capture import Context, TokenCapture, TokenError
from rollout.tool_calls import PARSERS, Parsed, Parser, ParserName, TemplateName, parser_of, same

PROBES: tuple[tuple[Message, ...], ...] = (
    (Message("user", " Look around.\n\n  Two  spaces, é and 日本. "),),
    (
        Message("system", "You act in a house."),
        Message("user", "> go to desk 1\nOn the desk 1, you see a mug 2."),
        Message("assistant", "take mug 2 from desk 1"),
        Message("user", "Nothing happens."),
    ),
)


PROBE_TOOL = ToolSpec(
    "look_up", "Looks a key up.", {"type": "object", "properties": {"key": {"type": "string"}}}
)
PROBE_INPUT = {"key": 'a "quoted" b', "count": 2}

PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m['role'].capitalize() + ': ' + m['content'].strip() + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""For base models, which have no template: a turn is `Role: words`, an answer ends with its line."""


class TemplateRefusal(ValueError):
    """A conversation that the chat template does not write (roles out of turn, say)."""


class Renderer:
    """Messages to prompt ids by the tokenizer's chat template, and sampled ids back to text.

    The template renders the text of every call; its ids are looked up piece by piece between
    special tokens, so text that was seen before is never encoded twice.

    stop_ids: sampling ends after any of them: the end of sequence and the token that the template
    writes after an assistant turn. tool_parser: of the calls in sampled text; `auto` is the one that
    reads what the template itself writes, `none` where it writes no calls. template_options: passed
    to the template (`enable_thinking: false`, say). Raises TokenError for a tokenizer without a chat
    template, one whose ids depend on text across a special token, or a parser that does not read
    the template's calls. template: `model` is the tokenizer's own; `plain` a transcript, for base
    models.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        tool_parser: ParserName = "auto",
        template_options: Mapping[str, Any] = EMPTY,
        template: TemplateName = "model",
    ) -> None:
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise TokenError(
                f"tokenizer {tokenizer.name_or_path!r} is a {type(tokenizer).__name__}; expected a "
                "PreTrainedTokenizerFast (save a tokenizer.json)"
            )
        if template == "plain":
            tokenizer.chat_template = PLAIN_TEMPLATE
        if not tokenizer.chat_template:
            raise TokenError(
                f"tokenizer {tokenizer.name_or_path!r} has no chat template, as a base model; set "
                "rollout.template: plain, or tokenizer.chat_template and save it with the model"
            )
        self._tokenizer = tokenizer
        self._options = dict(template_options)
        tokenizer.backend_tokenizer.no_truncation()  # saved settings would cut prompts silently
        tokenizer.backend_tokenizer.no_padding()
        added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
        self._special = added
        # Longest first, as the tokenizer itself matches them.
        names = sorted(added, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None
        # Not all added tokens are special: <think> and <tool_call> are words of the answer.
        marks = sorted(tokenizer.all_special_tokens, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, marks)))
        self._encode: Callable[[str], tuple[int, ...]] = lru_cache(1 << 16)(self._encode_piece)
        self._decode: Callable[[tuple[int, ...], bool], str] = lru_cache(1 << 16)(self._decode_ids)
        self.stop_ids = self._find_stop_ids()
        self._check_pieces()
        self.tool_parser: str = self._find_tool_parser(tool_parser)
        self._parse: Parser = parser_of(self.tool_parser)
        self._one_call = self.tool_parser != "none" and not self._written_call(2)

    @classmethod
    def from_pretrained(
        cls,
        directory: str,
        tool_parser: ParserName = "auto",
        template_options: Mapping[str, Any] = EMPTY,
        template: TemplateName = "model",
    ) -> Renderer:
        """The renderer of a saved tokenizer (tokenizer files and chat template)."""
        tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        return cls(tokenizer, tool_parser, template_options, template)

    @property
    def entries(self) -> int:
        """Of the tokenizer, added tokens included."""
        return len(self._tokenizer)

    @property
    def thinks(self) -> bool:
        """Whether the template knows of thinking."""
        return "think>" in str(self._tokenizer.chat_template)

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        after: TokenCapture | None = None,
    ) -> list[int]:
        """Prompt ids of a conversation, ending where the assistant is to speak.

        after: the capture of the episode so far. Where the conversation goes on from one of its
        contexts, saying what was sampled, that context's own ids are kept and only the rest is
        encoded: a model may sample another split of a word than the tokenizer would choose, and
        another spelling of a tool call than the template would write. Raises TemplateRefusal.
        """
        text = self.text(messages, tools)
        if after is None:
            return self.encode(text)
        for context in after.contexts():
            if not context.sample:
                continue
            if not context.text:
                context.text = self._decode(tuple(context.ids[: context.prompt_length]), False)
            rest = self._rest(context, text)
            if rest is not None:
                ids = [*context.ids, *self.encode(rest)]
                break
        else:
            ids = self.encode(text)
        after.expect(ids, text)
        return ids

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
        """The conversation as the template writes it, with the generation prompt."""
        return self._render(messages, tools, True)

    def _render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], answer_next: bool
    ) -> str:
        try:
            rendered = self._tokenizer.apply_chat_template(
                [for_template(message) for message in messages],
                tools=[as_function(tool) for tool in tools] or None,
                add_generation_prompt=answer_next,
                tokenize=False,
                **self._options,
            )
        except (TemplateError, TypeError) as error:  # TypeError: an expression of the template
            raise TemplateRefusal(f"the chat template cannot write this: {error}") from error
        return str(rendered)

    def _rest(self, context: Context, text: str) -> str | None:
        """What `text` adds to the context, or None where it does not go on from it.

        A template may write the same answer otherwise than it was sampled (blanks trimmed, a call's
        JSON spaced); an answer of which it leaves something out, thinking say, is another one.
        """
        sampled = self._decode(context.sample, False)
        if text.startswith(context.text + sampled):
            return text[len(context.text) + len(sampled) :]
        if not text.startswith(context.text):
            return None
        said, close = self._split_stop(context.sample)
        written, mark, after = text[len(context.text) :].partition(close or self._turn_end)
        if not mark or not same(self._parse(written), self._parse(self._decode(said, False))):
            return None
        return after if close else mark + after

    def _split_stop(self, token_ids: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
        """Sampled ids without the stop token, and that token's text, "" for a cut answer."""
        if token_ids and token_ids[-1] in self.stop_ids:
            return token_ids[:-1], self._decode(token_ids[-1:], False)
        return token_ids, ""

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
        """Text of sampled ids without the stop token, special tokens dropped."""
        return self._decode(self._split_stop(tuple(token_ids))[0], True)

    def text_of(self, token_id: int) -> str:
        """Of one id, a special one too."""
        return self._decode((token_id,), False)

    def answer(self, token_ids: Sequence[int]) -> Parsed:
        """A sampled answer's words and tool calls. Calls that the template could not write again
        (several, where it takes one a turn) stay text."""
        ids = tuple(token_ids)
        if self.tool_parser == "none":
            return Parsed(self.decode(ids))
        parsed = self._parse(self._decode(self._split_stop(ids)[0], False))
        if not parsed.calls or (self._one_call and len(parsed.calls) > 1):
            return Parsed(self.decode(ids))
        return Parsed(self._marks.sub("", parsed.content), parsed.calls)

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
        """End of sequence, and the special token right after an assistant's words; where the words
        end with their line, the line break."""
        mark = "words of the assistant"
        messages = [for_template(Message("user", "Hi.")), for_template(Message("assistant", mark))]
        text = str(self._tokenizer.apply_chat_template(messages, tokenize=False, **self._options))
        after = text.rpartition(mark)[2]
        found = self._split.match(after.lstrip()) if self._split else None
        # What closes a turn, where no special token does: the end of sequence, as text.
        self._turn_end = found.group() if found else self._tokenizer.eos_token or "\0"
        ids = [self._tokenizer.eos_token_id, self._special[found.group()] if found else None]
        if after == "\n":
            self._turn_end = after
            line_break = self.encode(after)
            ids.append(line_break[0] if len(line_break) == 1 else None)
        stops = tuple(dict.fromkeys(number for number in ids if number is not None))
        if not stops:
            raise TokenError(
                f"tokenizer {self._tokenizer.name_or_path!r} has neither an end-of-sequence token "
                "nor a special token after assistant turns; sampling would never stop by itself"
            )
        return stops

    def _find_tool_parser(self, asked: ParserName) -> str:
        if asked == "none":
            return asked
        written = self._written_call()
        if not written:
            if asked == "auto":
                return "none"
            raise TokenError(
                f"tool_parser is {asked!r}, but the chat template of "
                f"{self._tokenizer.name_or_path!r} writes no tool calls, so the model would never "
                "read its own again; use a template with tools, or tool_parser: none"
            )
        expected = (PROBE_TOOL.name, PROBE_INPUT)
        for name in PARSERS if asked == "auto" else (asked,):
            if parser_of(name)(written).calls == (expected,):
                return name
        raise TokenError(
            f"the chat template of {self._tokenizer.name_or_path!r} writes a tool call as "
            f"{written!r}, which {'no parser' if asked == 'auto' else f'tool_parser {asked!r}'} "
            f"reads; there are {', '.join(PARSERS)}: set tool_parser: none for a model that acts "
            "by text"
        )

    def _written_call(self, count: int = 1) -> str:
        """An assistant turn with tool calls as the template writes it; "" where it writes none."""
        user = Message("user", "Hi.")
        calls = tuple(
            ToolCallSpec(f"probe{i:04d}", PROBE_TOOL.name, PROBE_INPUT) for i in range(count)
        )
        turn = [user, Message("assistant", "", tool_calls=calls)]
        try:
            text = self._render(turn, (PROBE_TOOL,), False)
            before = self._render([user], (PROBE_TOOL,), True)
        except TemplateRefusal:
            return ""
        # The prompt may go on where the turn was written: with an empty thought, say.
        shared = next(
            (i for i, (a, b) in enumerate(zip(text, before, strict=False)) if a != b), len(before)
        )
        written = text[shared:].partition(self._turn_end)[0]
        return written if PROBE_TOOL.name in written else ""

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
