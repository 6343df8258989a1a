"""A small world to evolve in: tasks with pass rates that depend on the harness's components."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from harness.bundle import Bundle, Component
from harness.evolve.records import Episode, EvalRequest, TraceStep

MENU = Component(
    "menu", "output_plumbing", "harness.processors.numbered_menu:NumberedMenu", {"max_items": 12}
)
WINDOW = Component("window", "context_mgmt", "harness.processors.history_window:HistoryWindow")
H0 = Bundle((MENU, WINDOW))


def episode(
    task: str = "t0", seed: int = 0, harness: str = H0.id, success: bool = False, **more: object
) -> Episode:
    fields: dict = {"outcome": "completed", "reward": float(success), "steps": 3}
    return Episode(task, seed, harness, success=success, **{**fields, **more})


class World:
    """`rate(bundle, task)` is the pass rate; a failing run takes an object that the goal does not
    name. Counts what it is asked for."""

    def __init__(self, rate: Callable[[Bundle, str], float], tasks: int = 40) -> None:
        self.rate = rate
        self.tasks = [f"task-{n:02d}" for n in range(tasks)]
        self.requests: list[EvalRequest] = []
        self.infra = 0.0
        self.fires = True

    @property
    def rollouts(self) -> int:
        return sum(request.rollouts for request in self.requests)

    def run(self, bundle: Bundle, task: str, seed: int) -> Episode:
        luck = random.Random(f"{bundle.id}:{task}:{seed}")
        success = luck.random() < self.rate(bundle, task)
        thing = "apple" if success else "mug"
        trace = tuple(
            TraceStep(n, f"take {thing} {n}", f"You see {n}.", (), f"{bundle.id[:8]}-{n}")
            for n in range(3)
        )
        fired = {item.id: 5 for item in bundle.components} if self.fires else {}
        lost = random.Random(f"infra:{bundle.id}:{task}:{seed}").random() < self.infra
        return episode(
            task,
            seed,
            bundle.id,
            success and not lost,
            outcome="infra_error" if lost else "completed",
            instruction="put an apple in the fridge.",
            trace=trace,
            fired=fired,
            tokens=1000,
        )

    def history(self, bundle: Bundle, repeats: int = 4) -> list[Episode]:
        return [self.run(bundle, task, 900 + n) for task in self.tasks for n in range(repeats)]

    async def evaluate(self, request: EvalRequest) -> Sequence[Episode]:
        self.requests.append(request)
        base = {"smoke": 0, "select": 100, "confirm": 200, "drift": 300}[
            request.purpose
        ] + 1000 * request.draw
        return [
            self.run(bundle, task, base + n)
            for task in request.tasks
            for n in range(request.repeats)
            for bundle in request.bundles
        ]


def helps(*ids: str, low: float = 0.1, high: float = 0.6) -> Callable[[Bundle, str], float]:
    """A bundle with one of these components passes at `high`, another at `low`."""

    def rate(bundle: Bundle, task: str) -> float:
        return high if any(item.id in ids for item in bundle.components) else low

    return rate
