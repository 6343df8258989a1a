"""Token in, token out: the prompts and samples of an episode become segments that may train."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rollout.policy.base import Sample
from rollout.trajectory import Segment

Join = Literal["clean", "realign", "fork"]

REALIGN_LIMIT = 32
"""Longest tail without a trainable token, in tokens, that a new prompt may replace in a segment."""


class TokenError(ValueError):
    """A tokenizer or chat template that cannot serve token in, token out."""


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
