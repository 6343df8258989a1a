"""Best of n at a matched budget: no evolution, its tokens spent on repeats of the held-out tasks.

Source: methods' baseline. H_0 under M_0 runs every held-out task n times under independent seeds,
and the verifier chooses: an upper bound, for nobody has the verifier when it counts. n is given, or
grows until the repeats have cost what another run's rollouts and evolution did.
"""

from __future__ import annotations

import json
from typing import Any

from coevo.arms import another, learning_tokens, matched_run
from coevo.loop import Loop
from coevo.metrics import MetricsLog
from coevo.records import BestOfN, EpisodeResult, Measured, SplitResult, Summary, Tokens
from harness.atomic import write_json

FILE = "best_of_n.json"


class BestOfNRun(Loop):
    """The arm: one measurement as every arm makes it, then repeats of its held-out part."""

    async def go(self) -> Summary:
        settings = self.config.best_of_n
        match = matched_run(self.config)
        budget = None if match is None else learning_tokens(match)
        with MetricsLog(self.run.path / "metrics.jsonl"):
            pass  # a run without rounds
        # Neither is used in this arm.
        self.learner.close()
        await self.evolver.close()
        first = await self.measure(0)
        held_out = json.loads(self.run.evaluation(0).read_text())
        # A task's first run: more of them (evaluation.repeats) are no part of the budget.
        firsts = held_out["episodes"][:: self.config.evaluation.repeats]
        episodes = [EpisodeResult.model_validate(item) for item in firsts]
        tokens, wall, repeats = [0, 0], first["wall"], 0
        while (
            another(sum(tokens), repeats, budget)
            if budget is not None
            else repeats + 1 < (settings.n or 1)
        ):
            repeats += 1
            found = await self._repeat(repeats)
            episodes += [EpisodeResult.model_validate(item) for item in found["episodes"]]
            tokens = [a + b for a, b in zip(tokens, found["tokens"], strict=True)]
            wall += found["wall"]
        record = BestOfN(
            round=self.config.rounds,
            n=repeats + 1,
            harness_id=self.state.incumbent.id,
            matched=match.name if match is not None else "",
            budget=budget,
            tokens=Tokens(prompt=tokens[0], sampled=tokens[1]),
            episodes=tuple(episodes),
        )
        write_json(self.run.path / FILE, record.to_json())
        initial = {split: SplitResult(**value) for split, value in first["splits"].items()}
        summary = Summary(
            name=self.config.name,
            arm=self.config.mode,
            mode=self.config.mode,
            seed=self.config.seed,
            rounds=0,
            initial=Measured(**initial),
            final=Measured(**{**initial, "heldout": record.best().result}),
            wall_s=wall,
            tokens=Tokens(
                prompt=first["tokens"][0] + tokens[0], sampled=first["tokens"][1] + tokens[1]
            ),
            measured_tokens=Tokens(prompt=first["tokens"][0], sampled=first["tokens"][1]),
        )
        write_json(self.run.path / "summary.json", summary.to_json())
        return summary

    async def _repeat(self, repeat: int) -> dict[str, Any]:
        pair = [self.state.incumbent.id, self.version]
        return await self._phase(
            f"repeat/{repeat}", pair, self.evaluator.repeat, self.serving, self.version, repeat
        )
