"""The policy served by vLLM in a Ray actor: `VLLMEngine` on the driver, `VLLMActor` behind it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError

from rollout.logs import Kept, Said, replay
from rollout.policy.base import ContextOverflow, EngineError, Request, Sample, Sampling
from rollout.policy.broadcast import Broadcast
from rollout.policy.config import VLLMEngineConfig
from rollout.policy.engine_loop import EngineLoop
from rollout.policy.remote import call

T = TypeVar("T")
_log = logging.getLogger(__name__)

INSTALL = "run `make install`, or `pip install 'coevo[cpu]'` (`coevo[gpu]` on CUDA machines)"
SEED_LIMIT = 1 << 63


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """State of a live engine; counters since its start."""

    version: int
    pid: int
    open_jobs: int
    requests: int
    prompt_tokens: int
    cached_tokens: int
    sampled_tokens: int


class VLLMActor:
    """Runs one vLLM engine; every method is async, one engine thread does the work."""

    def __init__(self, config: VLLMEngineConfig) -> None:
        self._config = config
        self._log = Kept.install()
        self._core: Any = None
        self._loop: EngineLoop[Any, Any] | None = None
        self._requests = self._prompt = self._cached = self._sampled = 0

    async def logs(self) -> list[Said]:
        """What was logged here since the last call."""
        return self._log.fetch()

    async def start(self, version: int) -> None:
        """Load the model and answer one warm-up request. Raises EngineError that says what to do."""
        for name, value in self._config.env().items():
            if os.environ.get(name) != value:
                raise EngineError(
                    f"{name} is {os.environ.get(name)!r} in the engine's process, expected "
                    f"{value!r}: start the engine with VLLMEngine.start, which sets it"
                )
        try:
            from rollout.policy import compat
        except (ImportError, OSError, RuntimeError) as error:
            # RuntimeError: a torchvision or torchaudio wheel that does not fit torch.
            raise EngineError(f"vLLM cannot be imported ({error}); {INSTALL}") from error
        try:
            self._core = compat.VLLMCore(self._config, version)
        except (OSError, ValueError, RuntimeError, AssertionError) as error:
            raise EngineError(
                f"vLLM could not serve {self._config.model!r}: {error}; check the path, "
                f"engine.kv_cache_bytes ({self._config.kv_cache_bytes}) and engine.max_model_len "
                f"({self._config.max_model_len})"
            ) from error
        self._loop = EngineLoop(self._core, self._config.batching)
        # The first batch pays for kernel set-up.
        await asyncio.wrap_future(self._loop.submit([Request((0,), Sampling(max_tokens=1))]))

    async def generate(self, requests: list[Request]) -> list[Sample]:
        samples: list[Sample] = await asyncio.wrap_future(self._running().submit(requests))
        self._requests += len(requests)
        self._prompt += sum(len(request.prompt_ids) for request in requests)
        self._cached += sum(sample.cached_tokens for sample in samples)
        self._sampled += sum(len(sample.token_ids) for sample in samples)
        return samples

    async def score(self, sequences: list[tuple[int, ...]]) -> list[list[float]]:
        from rollout.policy.compat import ScoreRequest

        if self._config.lora is not None:
            return await asyncio.wrap_future(
                self._running().call(lambda: self._core.score_alone(sequences))
            )
        return await asyncio.wrap_future(
            self._running().submit([ScoreRequest(sequence) for sequence in sequences])
        )

    async def update(self, weights: str | Broadcast, version: int, fingerprint: str) -> None:
        await asyncio.wrap_future(
            self._running().call(lambda: self._core.update(weights, version, fingerprint))
        )

    async def sleep(self) -> None:
        await asyncio.wrap_future(self._running().call(self._core.sleep))

    async def fingerprint(self) -> str:
        return await asyncio.wrap_future(self._running().call(self._core.fingerprint))

    async def health(self) -> EngineHealth:
        loop = self._running()
        open_jobs = loop.open_jobs
        # Through the engine thread, so that a stuck engine does not look healthy.
        version = await asyncio.wrap_future(loop.call(lambda: self._core.version))
        return EngineHealth(
            version,
            os.getpid(),
            open_jobs,
            self._requests,
            self._prompt,
            self._cached,
            self._sampled,
        )

    async def shutdown(self) -> None:
        if self._loop is not None:
            await asyncio.to_thread(self._loop.close)
            self._core.close()

    def _running(self) -> EngineLoop[Any, Any]:
        if self._loop is None:
            raise EngineError("the engine was not started; call start() first")
        return self._loop


class VLLMEngine:
    """`PolicyEngine` over a `VLLMActor`: one remote call a batch.

    Sampling at temperature 0 is greedy; its log-probs are those at temperature 1.
    """

    def __init__(self, actor: Any, config: VLLMEngineConfig, number: int = 0) -> None:
        self._actor = actor
        self._config = config
        self._number = number

    @classmethod
    def begin(cls, config: VLLMEngineConfig, *, number: int = 0, **ray_options: Any) -> VLLMEngine:
        """An actor (Ray must be initialised) whose engine `ready` loads: until then it can be handed
        on, not asked.

        number: of the replica, in logs. ray_options: passed on to the actor (name,
        scheduling_strategy, …). The actor is never restarted by Ray, because a restarted one would
        serve the first weights again.
        """
        options: dict[str, Any] = {
            "num_cpus": config.threads,
            "num_gpus": config.tensor_parallel if config.device == "cuda" else 0,
            "max_concurrency": 1000,
            "max_restarts": 0,
            "runtime_env": {"env_vars": config.env()},
        }
        actor: Any = ray.remote(VLLMActor).options(**(options | ray_options)).remote(config)
        return cls(actor, config, number)

    async def ready(self, version: int = 0) -> None:
        """Load `config.model` and serve it as `version`. Raises EngineError; the actor is gone then."""
        try:
            await self._call(
                self._actor.start.remote(version), self._config.start_timeout_s, "start"
            )
        except BaseException:
            ray.kill(self._actor)
            raise
        await self._say("serves %s as version %d", self._config.model, version)

    @classmethod
    async def start(
        cls, config: VLLMEngineConfig, *, version: int = 0, number: int = 0, **ray_options: Any
    ) -> VLLMEngine:
        """`begin` and `ready` at once."""
        engine = cls.begin(config, number=number, **ray_options)
        await engine.ready(version)
        return engine

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together that one request may have."""
        return self._config.max_model_len

    async def generate(self, requests: Sequence[Request]) -> list[Sample]:
        """Raises ContextOverflow (before anything runs), ValueError (a bad request), EngineError."""
        for index, request in enumerate(requests):
            check_request(
                request, self._config.max_model_len, f"request {index} of {len(requests)}"
            )
        return await self._call(
            self._actor.generate.remote(list(requests)), self._config.call_timeout_s, "generate"
        )

    async def update(self, weights: str | Broadcast, version: int, fingerprint: str) -> None:
        await self._call(
            self._actor.update.remote(weights, version, fingerprint),
            self._config.call_timeout_s,
            f"update to version {version}",
        )
        await self._say("serves version %d, weights %s", version, fingerprint)

    async def sleep(self) -> None:
        """Give the GPU memory away until the next `update`. Raises EngineError."""
        await self._call(self._actor.sleep.remote(), self._config.call_timeout_s, "sleep")

    async def fingerprint(self) -> str:
        return await self._call(
            self._actor.fingerprint.remote(), self._config.call_timeout_s, "fingerprint"
        )

    async def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs at temperature 1 of tokens 1… of each sequence (n − 1 numbers for n tokens)."""
        for index, sequence in enumerate(sequences):
            check_length(len(sequence), self._config.max_model_len, f"sequence {index}")
            if len(sequence) < 2:
                raise ValueError(
                    f"sequence {index} has {len(sequence)} tokens; a score needs at least 2"
                )
        return await self._call(
            self._actor.score.remote([tuple(map(int, s)) for s in sequences]),
            self._config.call_timeout_s,
            "score",
        )

    async def health(self) -> EngineHealth:
        return await self._call(self._actor.health.remote(), self._config.call_timeout_s, "health")

    async def shutdown(self) -> None:
        """Finish what is queued, release the engine, end the actor; a dead one is done already."""
        try:
            async with asyncio.timeout(self._config.call_timeout_s):
                await self._actor.shutdown.remote()
        except (RayActorError, TimeoutError):
            pass
        finally:
            ray.kill(self._actor)

    async def _say(self, text: str, *values: object) -> None:
        """Log it, with what the engine logged itself."""
        actor = f"engine {self._number}"
        replay(
            await self._call(self._actor.logs.remote(), self._config.call_timeout_s, "logs"), actor
        )
        _log.info(text, *values, extra={"actor": actor})

    async def _call(self, reference: Awaitable[T], timeout_s: float, what: str) -> T:
        return await call(reference, timeout_s, f"engine {self._config.model!r}", what)


def check_length(tokens: int, max_model_len: int, what: str) -> None:
    if tokens + 1 > max_model_len:
        raise ContextOverflow(
            f"{what} has {tokens} tokens, which leaves no room for a new one in a context of "
            f"{max_model_len}; shorten the history or raise engine.max_model_len"
        )


def check_request(request: Request, max_model_len: int, what: str) -> None:
    """Refuse what vLLM would silently change. Raises ContextOverflow and ValueError."""
    check_length(len(request.prompt_ids), max_model_len, what)
    sampling = request.sampling
    if not request.prompt_ids:
        raise ValueError(f"{what} has an empty prompt")
    if 0 < sampling.temperature < 0.01 or sampling.temperature < 0:
        raise ValueError(
            f"{what}: temperature is {sampling.temperature}; expected 0 (greedy) or at least 0.01 "
            "(vLLM raises smaller ones to 0.01)"
        )
    if not 0 <= sampling.seed < SEED_LIMIT:
        raise ValueError(f"{what}: seed is {sampling.seed}; expected 0 ≤ seed < 2**63")
    if sampling.max_tokens < 1:
        raise ValueError(f"{what}: max_tokens is {sampling.max_tokens}; expected at least 1")
