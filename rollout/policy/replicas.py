"""Several engines that serve the same policy, as one: a trajectory stays where its prefix is."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rollout.policy.base import EngineDied, EngineError, PolicyEngine, Request, Sample
from rollout.policy.broadcast import Broadcast
from rollout.policy.config import VLLMEngineConfig
from rollout.policy.vllm import VLLMEngine

T = TypeVar("T")

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.5}
"""Largest difference of two replicas' log-probs; low precision sums in another order by batch."""

REMEMBERED = 1 << 16
"""Trajectories whose replica is remembered; far more than run at once."""


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """Where Ray puts an engine: options of its actor, and `VLLMEngineConfig.bundles`."""

    ray_options: Mapping[str, Any] = field(default_factory=dict)
    bundles: tuple[int, ...] = ()


class ReplicaSet:
    """`PolicyEngine` over replicas.

    A new trajectory goes to the live replica with the fewest open requests (of those that went
    through this object), then with the fewest trajectories; its later requests follow it there, for
    the cached prefix. A replica whose process died is named, its requests are infrastructure errors,
    and nothing more is sent to it; the next update fails, so that a run never goes on with a policy
    that not every replica serves. tolerance: of the replicas' log-probs among each other.
    """

    def __init__(self, replicas: Sequence[PolicyEngine], tolerance: float = 1e-3) -> None:
        if not replicas:
            raise ValueError("a ReplicaSet needs at least one replica")
        self._replicas = tuple(replicas)
        self._tolerance = tolerance
        self._open = [0] * len(replicas)
        self._given = [0] * len(replicas)
        self._home: OrderedDict[str, int] = OrderedDict()
        self._dead: dict[int, str] = {}

    async def ready(self) -> None:
        """Load all at once. Raises the first error; no engine is left running then."""
        found = await asyncio.gather(
            *(engine.ready() for engine in self._replicas), return_exceptions=True
        )
        errors = [error for error in found if isinstance(error, BaseException)]
        if errors:
            await self.shutdown()
            raise errors[0]

    async def generate(self, requests: Sequence[Request]) -> list[Sample]:
        shares: dict[int, list[int]] = {}
        try:
            for index in self._routed_first(requests):
                replica = self._route(requests[index].trajectory)
                shares.setdefault(replica, []).append(index)
                self._open[replica] += 1
            parts = await asyncio.gather(
                *(
                    self._ask(
                        replica, self._replicas[replica].generate([requests[i] for i in share])
                    )
                    for replica, share in shares.items()
                )
            )
        finally:
            for replica, share in shares.items():
                self._open[replica] -= len(share)
        samples: dict[int, Sample] = {}
        for share, part in zip(shares.values(), parts, strict=True):
            samples.update(zip(share, part, strict=True))
        return [samples[index] for index in range(len(requests))]

    async def update(self, weights: str | Broadcast, version: int, fingerprint: str) -> None:
        """Update every replica, then compare their fingerprints. Raises EngineError."""
        if self._dead:
            raise EngineError(
                f"version {version} cannot be published to all replicas: "
                f"{'; '.join(self._dead.values())}"
            )
        await self._each(lambda engine: engine.update(weights, version, fingerprint))
        await self.fingerprint()

    async def sleep(self) -> None:
        """All give their GPU memory away until the next update."""
        await self._each(lambda engine: engine.sleep())

    async def fingerprint(self) -> str:
        """Of what all replicas serve. Raises EngineError where two differ."""
        found = await self._each(lambda engine: engine.fingerprint())
        for index, value in enumerate(found):
            if value != found[0]:
                raise EngineError(
                    f"replica {index} serves weights {value}, replica 0 serves {found[0]}; publish "
                    "the current version to all of them again"
                )
        return found[0]

    async def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Replica 0's values. Raises EngineError where another one's differ by more than the
        tolerance: it read the right file and loaded it wrongly."""
        found = await self._each(lambda engine: engine.score(sequences))
        for index, values in enumerate(found):
            distance = _distance(values, found[0])
            if not distance <= self._tolerance:
                raise EngineError(
                    f"log-probs of replica {index} differ by {distance:.3g} from those of replica 0; "
                    f"at most {self._tolerance:g} is expected of the same weights"
                )
        return found[0]

    async def shutdown(self) -> None:
        await asyncio.gather(*(engine.shutdown() for engine in self._replicas))

    async def _each(self, action: Callable[[PolicyEngine], Awaitable[T]]) -> list[T]:
        """All replicas at once; the first error is raised when all have ended."""
        found = await asyncio.gather(
            *(self._ask(i, action(engine)) for i, engine in enumerate(self._replicas)),
            return_exceptions=True,
        )
        values: list[T] = []
        for value in found:
            if isinstance(value, BaseException):
                raise value
            values.append(value)
        return values

    async def _ask(self, replica: int, reference: Awaitable[T]) -> T:
        try:
            return await reference
        except EngineError as error:
            said = f"replica {replica} of {len(self._replicas)}: {error}"
            if isinstance(error, EngineDied):
                self._dead[replica] = said
            raise type(error)(said) from error

    def _routed_first(self, requests: Sequence[Request]) -> list[int]:
        """Indices, those of trajectories that have a home first: new ones fill what is left."""
        return sorted(
            range(len(requests)), key=lambda i: self._living_home(requests[i].trajectory) is None
        )

    def _living_home(self, trajectory: str) -> int | None:
        home = self._home.get(trajectory) if trajectory else None
        return None if home in self._dead else home

    def _route(self, trajectory: str) -> int:
        home = self._living_home(trajectory)
        if home is None:
            alive = [i for i in range(len(self._replicas)) if i not in self._dead]
            if not alive:
                raise EngineDied(f"no replica is left: {'; '.join(self._dead.values())}")
            home = min(alive, key=lambda i: (self._open[i], self._given[i], i))
            self._given[home] += 1
        if trajectory:
            self._home[trajectory] = home
            self._home.move_to_end(trajectory)
            if len(self._home) > REMEMBERED:
                self._home.popitem(last=False)
        return home


def begin_replicas(
    config: VLLMEngineConfig,
    count: int,
    places: Sequence[EnginePlace] = (),
    **ray_options: Any,
) -> ReplicaSet:
    """`count` vLLM engines, each in its place where they are given, for `ReplicaSet.ready` to load."""
    engines = [
        VLLMEngine.begin(
            config.model_copy(update={"seed": config.seed + i, "bundles": place.bundles}),
            number=i,
            **{**ray_options, **place.ray_options},
        )
        for i, place in enumerate(places or [EnginePlace()] * count)
    ]
    return ReplicaSet(engines, TOLERANCE[config.dtype])


async def start_replicas(
    config: VLLMEngineConfig,
    count: int,
    places: Sequence[EnginePlace] = (),
    **ray_options: Any,
) -> ReplicaSet:
    """`begin_replicas` and `ReplicaSet.ready` at once."""
    engines = begin_replicas(config, count, places, **ray_options)
    await engines.ready()
    return engines


def _distance(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    pairs = (
        (a, b)
        for mine, theirs in zip(one, other, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )
    return max((abs(a - b) for a, b in pairs), default=0.0)
