"""The paid steps of a round: what parts think and what rollouts show, each paid once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.evolve.journal import Journal
from harness.evolve.pairing import PairsLost
from harness.evolve.parts import Evaluate, PartFailed, Reviser, Situation
from harness.evolve.recipe import Parts
from harness.evolve.records import (
    Candidate,
    Digest,
    Episode,
    EvalRequest,
    Landscape,
    Review,
    decode,
    encode,
)
from harness.evolve.state import candidate_from_json, candidate_to_json


@dataclass(frozen=True, slots=True)
class Reviewed:
    """What the critic left. ranked: goes on, best first. rejected: with its reason."""

    ranked: tuple[Candidate, ...]
    rejected: tuple[tuple[Candidate, str], ...]


@dataclass(frozen=True, slots=True)
class RolloutBudget:
    """most: rollouts that evolution may ask for in the whole run (None: no limit). spent: before
    this round."""

    most: int | None = None
    spent: int = 0

    def check(self, now: int, request: EvalRequest) -> None:
        """Raises PartFailed where the request does not fit; `now`: spent in this round."""
        used = self.spent + now
        if self.most is not None and used + request.rollouts > self.most:
            raise PartFailed(
                f"the {request.purpose} draw takes {request.rollouts} rollouts; {used} of the "
                f"{self.most} that evolution may spend are spent"
            )


class Steps:
    """The steps, journaled under all that they can see; `rolled`: journal key -> its episodes."""

    def __init__(
        self,
        parts: Parts,
        at: Situation,
        evaluate: Evaluate,
        journal: Journal,
        budget: RolloutBudget,
    ) -> None:
        self.parts, self.at, self.journal, self.budget = parts, at, journal, budget
        self._evaluate = evaluate
        self.rolled: dict[str, tuple[Episode, ...]] = {}

    def episodes(self) -> tuple[Episode, ...]:
        """Every rollout so far."""
        return tuple(run for runs in self.rolled.values() for run in runs)

    async def digest(self) -> Digest:
        async def compute() -> Any:
            return encode(await self.parts.analyst.digest(self.at))

        return decode(Digest, await self._once("digest", self.parts.analyst, None, compute))

    async def plan(self, digest: Digest) -> Landscape:
        async def compute() -> Any:
            return encode(await self.parts.director.plan(self.at, digest))

        inputs = encode(digest)
        return decode(Landscape, await self._once("plan", self.parts.director, inputs, compute))

    async def propose(self, digest: Digest, landscape: Landscape) -> tuple[Candidate, ...]:
        async def compute() -> Any:
            found = await self.parts.proposer.propose(self.at, digest, landscape)
            return [candidate_to_json(item) for item in found]

        inputs = [encode(digest), encode(landscape)]
        found = await self._once("propose", self.parts.proposer, inputs, compute)
        return tuple(candidate_from_json(item, self.at.incumbent) for item in found)

    async def review(
        self, digest: Digest, landscape: Landscape, candidates: tuple[Candidate, ...]
    ) -> Reviewed:
        """The critic's ranking, after at most one revision of each candidate that it asks for."""
        review = await self._review("review", digest, landscape, candidates)
        rejected = dict(review.rejected)
        now = {item.candidate_id: item for item in candidates}
        ranking = review.ranking
        for name, note in sorted(review.revise.items()):
            revised = await self._revise(digest, landscape, now[name], note)
            if revised is None:
                rejected[name] = f"the critic asked for a revision and got none: {note}"
            else:
                now[name] = revised
        left = tuple(now[name] for name in now if name not in rejected)
        if any(name not in rejected for name in review.revise):
            second = await self._review("review-again", digest, landscape, left)
            rejected |= second.rejected
            rejected |= {
                name: f"after its revision: {note}" for name, note in second.revise.items()
            }
            ranking = second.ranking
        return Reviewed(
            tuple(now[name] for name in ranking),
            tuple((now[name], why) for name, why in sorted(rejected.items())),
        )

    async def evaluate(self, request: EvalRequest) -> tuple[Episode, ...]:
        """Roll out, once; a request that infrastructure took away wholly is not kept.

        Raises PairsLost in that case, PartFailed where the budget does not allow it."""
        self.budget.check(len(self.episodes()), request)
        lost: list[Episode] = []

        async def compute() -> Any:
            runs = list(await self._evaluate(request))
            if runs and not any(run.scored for run in runs):
                lost.extend(runs)
                raise PairsLost(
                    f"{request.purpose} draw {request.draw}: all {len(runs)} rollouts ended in "
                    "infra_error; mend the infrastructure and resume the round"
                )
            return [encode(run) for run in runs]

        ids = "+".join(bundle.id[:12] for bundle in request.bundles)
        key = f"{self.at.round}/{request.purpose}/{request.draw}/{ids}"
        inputs = {"seed": self.at.seed, **request.inputs()}
        try:
            found = await self.journal.once(key, inputs, compute)
        except PairsLost:
            self.rolled[key] = tuple(lost)
            raise
        self.rolled[key] = tuple(decode(Episode, item) for item in found)
        return self.rolled[key]

    async def _review(
        self,
        step: str,
        digest: Digest,
        landscape: Landscape,
        candidates: tuple[Candidate, ...],
    ) -> Review:
        async def compute() -> Any:
            return encode(await self.parts.critic.review(self.at, digest, landscape, candidates))

        inputs = [
            encode(digest),
            encode(landscape),
            [candidate_to_json(item) for item in candidates],
        ]
        review = decode(Review, await self._once(step, self.parts.critic, inputs, compute))
        said = sorted([*review.ranking, *review.rejected, *review.revise])
        if said != sorted(item.candidate_id for item in candidates):
            raise PartFailed(
                f"critic {type(self.parts.critic).__name__} spoke of {said}; it must rank, reject "
                f"or have revised each of {[item.candidate_id for item in candidates]}, once"
            )
        return review

    async def _revise(
        self, digest: Digest, landscape: Landscape, candidate: Candidate, note: str
    ) -> Candidate | None:
        proposer = self.parts.proposer
        if not isinstance(proposer, Reviser):
            return None

        async def compute() -> Any:
            found = await proposer.revise(self.at, digest, landscape, candidate, note)
            return candidate_to_json(found) if found else None

        inputs = [encode(digest), encode(landscape), candidate_to_json(candidate), note]
        found = await self._once(f"revise/{candidate.candidate_id}", proposer, inputs, compute)
        if found is None:
            return None
        if found["candidate_id"] != candidate.candidate_id:
            raise PartFailed(
                f"the revision of {candidate.candidate_id} calls itself {found['candidate_id']}; "
                "the id must stay"
            )
        return candidate_from_json(found, self.at.incumbent)

    async def _once(self, step: str, part: Any, inputs: Any, compute: Any) -> Any:
        seen = {
            "part": [type(part).__name__, part.model_dump(mode="json")],
            "incumbent": self.at.incumbent.id,
            "episodes": [encode(item) for item in self.at.episodes],
            "memory": encode(self.at.memory),
            "seed": self.at.seed,
            "inputs": inputs,
        }
        return await self.journal.once(f"{self.at.round}/{step}", seen, compute)
