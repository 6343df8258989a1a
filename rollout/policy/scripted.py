"""A policy engine that answers from a function: for tests of control logic, never for a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rollout.policy.base import ContextOverflow, EngineAsleep, EngineError, Request, Sample
from rollout.policy.broadcast import Broadcast
from rollout.policy.weights import WeightsError, fingerprint_file


class ScriptedEngine:
    """`PolicyEngine` whose tokens come from `script(prompt_ids) -> ids`.

    logprob: given to every sampled token. delay_s: of each `generate` call. fail_at: numbers of
    `generate` calls (from 0) that raise EngineError. An answer longer than `max_tokens` is cut and
    finishes with "length".
    """

    def __init__(
        self,
        script: Callable[[tuple[int, ...]], Sequence[int]],
        *,
        max_model_len: int = 1 << 20,
        logprob: float = -1.0,
        delay_s: float = 0.0,
        fail_at: frozenset[int] = frozenset(),
        version: int = 0,
    ) -> None:
        self._script = script
        self._logprob = logprob
        self._delay_s = delay_s
        self._fail_at = fail_at
        self._fingerprint = "0" * 64
        self.max_model_len = max_model_len
        self.version = version
        self.asleep = False
        self.calls: list[tuple[Request, ...]] = []

    async def ready(self) -> None: ...

    async def generate(self, requests: Sequence[Request]) -> list[Sample]:
        self.calls.append(tuple(requests))
        if len(self.calls) - 1 in self._fail_at:
            raise EngineError(f"scripted failure of generate call {len(self.calls) - 1}")
        if self.asleep:
            raise EngineAsleep("the engine sleeps; publish weights to wake it")
        version = self.version
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        return [self._answer(request, version) for request in requests]

    def _answer(self, request: Request, version: int) -> Sample:
        room = self.max_model_len - len(request.prompt_ids)
        if room < 1:
            raise ContextOverflow(
                f"a prompt of {len(request.prompt_ids)} tokens leaves no room in a context of "
                f"{self.max_model_len}"
            )
        ids = tuple(self._script(request.prompt_ids))
        limit = min(room, request.sampling.max_tokens)
        cut = len(ids) > limit
        ids = ids[:limit]
        return Sample(ids, (self._logprob,) * len(ids), "length" if cut else "stop", version)

    async def update(self, weights: str | Broadcast, version: int, fingerprint: str) -> None:
        """Checks the file as a real engine does, and stamps the version."""
        if isinstance(weights, Broadcast):
            raise EngineError(f"a scripted engine has no weights to receive: {weights}")
        try:
            found = fingerprint_file(weights)
        except WeightsError as error:
            raise EngineError(str(error)) from error
        if found != fingerprint:
            raise EngineError(f"{weights!r} has fingerprint {found}, expected {fingerprint}")
        self.version, self._fingerprint, self.asleep = version, fingerprint, False

    async def sleep(self) -> None:
        """Refuses requests until the next update, as a real engine does."""
        self.asleep = True

    async def fingerprint(self) -> str:
        return self._fingerprint

    async def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[self._logprob] * (len(sequence) - 1) for sequence in sequences]

    async def shutdown(self) -> None:
        """Nothing to release."""
