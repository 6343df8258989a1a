"""The scheduler over workers made of coroutines: retries, deaths, hangs, pacing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

import rollout.scheduler
from harness.events import TaskView
from harness.runloop import RunResult
from rollout.config import RolloutConfig
from rollout.episode import EpisodeResult, trajectory_of
from rollout.logs import Said
from rollout.scheduler import Admission, RolloutError, Scheduler, WorkerDied
from rollout.spec import EpisodeSpec
from rollout.staleness import StalenessManager
from rollout.task import Task


def spec(number: int) -> EpisodeSpec:
    task = Task(f"task-{number}", "world", "evolve", TaskView("do it", "world"))
    return EpisodeSpec(f"e{number}", task, "h", "incumbent", 0, 0, number)


SPECS = [spec(i) for i in range(9)]


class Coroutine:
    """A worker in this process: `outcome(spec id, how often it ran)` names how an episode ends, or
    raises; "hang" never ends and gives no sign of life."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.gone = asyncio.Event()
        self.hangs = False
        self.shares: list[list[str]] = []

    async def run(
        self, specs: Sequence[EpisodeSpec], bundles: str, trace: str
    ) -> AsyncIterator[tuple[int, EpisodeResult]]:
        self.shares.append([s.id for s in specs])
        for k in reversed(range(len(specs))):  # the last one asked for ends first
            await asyncio.sleep(0)
            kind = self.world.end(specs[k].id)
            if kind == "hang":
                self.hangs = True
                await self.gone.wait()
                raise WorkerDied("killed")
            if kind == "die":
                self.gone.set()
                raise WorkerDied("signal 9")
            result = RunResult(kind, "", 1, "")  # type: ignore[arg-type]
            yield k, EpisodeResult(trajectory_of(specs[k], result, "", None, None, 0.0))

    async def alive(self) -> list[Said]:
        await asyncio.sleep(3600 if self.hangs else 0)
        return []

    def kill(self) -> None:
        self.gone.set()


class World:
    """Remembers how often each episode began; `ends` says how its n-th run ends."""

    def __init__(self, ends: Callable[[str, int], str] = lambda id, n: "completed") -> None:
        self.ends = ends
        self.begun: dict[str, int] = {}
        self.workers: list[Coroutine] = []

    def spawn(self) -> Coroutine:
        self.workers.append(Coroutine(self))
        return self.workers[-1]

    def end(self, id: str) -> str:
        self.begun[id] = self.begun.get(id, 0) + 1
        return self.ends(id, self.begun[id])

    def run(self, workers: int = 2, **settings: Any) -> tuple[list[EpisodeResult], list[str]]:
        """Results, and the ids that progress was told of, in order."""
        seen: list[str] = []

        async def all_of_them() -> list[EpisodeResult]:
            config = RolloutConfig(workers=workers, worker_deadline_s=0.1, **settings)
            scheduler = Scheduler(config, self.spawn)
            return await scheduler.run(SPECS, "", "off", lambda r: seen.append(r.trajectory.id))

        return asyncio.run(all_of_them()), seen


def test_episodes_are_dealt_in_turn_and_come_back_in_the_order_asked_for() -> None:
    world = World()
    results, seen = world.run()
    assert [w.shares for w in world.workers] == [
        [["e0", "e2", "e4", "e6", "e8"]],
        [["e1", "e3", "e5", "e7"]],
    ]
    assert [r.trajectory.id for r in results] == [s.id for s in SPECS]
    assert seen[:2] == ["e8", "e7"]  # told as they finish


@pytest.fixture(autouse=True)
def _quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout.scheduler, "START_S", 0.1)


@pytest.mark.parametrize("end", ["die", "hang"])
def test_a_worker_that_dies_or_hangs_is_replaced_and_each_episode_counts_once(end: str) -> None:
    world = World(lambda id, n: end if (id, n) == ("e4", 1) else "completed")
    results, seen = world.run()
    assert len(world.workers) == 3
    assert world.workers[0].gone.is_set()
    assert sorted(seen) == sorted(r.trajectory.id for r in results) == sorted(s.id for s in SPECS)
    # What had finished before is not run again; what had not is.
    assert world.begun == {**{s.id: 1 for s in SPECS}, "e4": 2}
    assert {r.trajectory.outcome.kind for r in results} == {"completed"}


def test_an_infrastructure_error_is_tried_again_and_an_agents_error_is_not() -> None:
    ends = {("e1", 1): "infra_error", ("e2", 1): "agent_error", ("e3", 1): "harness_error"}
    world = World(lambda id, n: ends.get((id, n), "completed"))
    results, seen = world.run()
    assert [r.trajectory.outcome.kind for r in results][:4] == [
        "completed", "completed", "agent_error", "harness_error",
    ]  # fmt: skip
    assert world.begun["e1"] == 2
    assert sum(world.begun.values()) == 10
    assert sorted(seen) == sorted(s.id for s in SPECS)


def test_an_episode_that_always_kills_its_worker_is_lost_not_failed() -> None:
    world = World(lambda id, n: "die" if id == "e0" else "completed")
    results, seen = world.run(min_coverage=0.8, retries=1)
    assert results[0].trajectory.outcome.kind == "infra_error"
    assert "died each time: signal 9" in results[0].trajectory.outcome.reason
    assert not results[0].trajectory.scored
    assert "e0" not in seen
    with pytest.raises(RolloutError, match=r"1 of 9 episodes ended in infrastructure errors"):
        World(world.ends).run(min_coverage=0.95, retries=1)


def test_the_message_says_that_a_worker_hung() -> None:
    with pytest.raises(RolloutError, match=r"no sign of life for 0\.1 s .*worker_deadline_s"):
        World(lambda id, n: "hang").run(workers=1, retries=0)


def test_a_paced_phase_starts_no_more_than_its_room_and_waits_for_the_policy() -> None:
    world = World(lambda id, n: "infra_error" if id == "e0" else "completed")
    manager = StalenessManager(batch=3, max_staleness=0)
    version = 0
    started: list[tuple[int, int]] = []

    async def train() -> None:
        """Moves the policy on whenever a whole batch is accepted."""
        nonlocal version
        while True:
            await asyncio.sleep(0)
            if manager.counts.accepted >= 3 * (version + 1):
                version += 1
            started.append((version, sum(n > 0 for n in world.begun.values())))

    async def both() -> list[EpisodeResult]:
        scheduler = Scheduler(RolloutConfig(workers=2, min_coverage=0.5, retries=0), world.spawn)
        trainer = asyncio.create_task(train())
        try:
            return await asyncio.wait_for(
                scheduler.run(SPECS, "", "off", None, Admission(manager, lambda: version)), 60
            )
        finally:
            trainer.cancel()

    results = asyncio.run(both())
    assert [r.trajectory.id for r in results] == [s.id for s in SPECS]
    # e0 was rejected, and gave its room to another of the first version.
    assert all(begun <= 3 * (at + 1) + 1 for at, begun in started)
    assert manager.counts.accepted == 8
    assert manager.counts.rejected == 1
    assert version == 2


def test_phases_asked_for_at_once_run_one_after_another() -> None:
    world = World(lambda id, n: "die" if (id, n) == ("e4", 1) else "completed")
    seen: list[str] = []

    async def both() -> None:
        scheduler = Scheduler(RolloutConfig(workers=2), world.spawn)
        await asyncio.gather(
            *(
                scheduler.run(part, "", "off", lambda r: seen.append(r.trajectory.id))
                for part in (SPECS[:5], SPECS[5:])
            )
        )

    asyncio.run(both())
    assert set(seen[:5]) == {s.id for s in SPECS[:5]}
    assert set(seen[5:]) == {s.id for s in SPECS[5:]}
    assert len(world.workers) == 3  # the one that died was replaced once
