"""Several harnesses side by side in the loop: who rolls out what, and what is measured again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from coevo.config import RunConfig, load_config
from coevo.evaluation import Evaluator
from coevo.live import LiveTable
from coevo.loop import Loop
from coevo.records import Evaluation
from coevo.rollouts import Serving, TaskSource, episode_specs, routed_specs
from coevo.rundir import RunDir
from coevo.sealed import SealedReads
from coevo.stack import Stack
from harness.bundle import Bundle, Component
from harness.evolve.parts import Variant
from harness.evolve.routers.isolated import Isolated
from harness.evolve.routing import Routing
from harness.evolve.state import EvolutionState
from harness.store import Store
from rollout.episode import EpisodeResult
from rollout.spec import EpisodeSpec
from rollout.task import Task
from rollout.trajectory import Cost, Outcome, Trajectory

ROOT = Path(__file__).resolve().parents[3]
CONFIG = load_config(ROOT / "configs" / "smoke.yaml")


def bundle(turns: int) -> Bundle:
    window = "harness.processors.history_window:HistoryWindow"
    return Bundle((Component("window", "context_mgmt", window, {"turns": turns}),))


MAIN, LAMP = bundle(1), bundle(2)
BOTH = (Variant("main", MAIN), Variant("R0-01", LAMP))
COUNTS = Routing(
    {
        "main": {"task_type=look_light": (1, 10), "task_type=pick_place": (9, 10)},
        "R0-01": {"task_type=look_light": (9, 10), "task_type=pick_place": (1, 10)},
    }
)


def several(counts: Routing = COUNTS) -> Serving:
    return Serving(BOTH, counts, Isolated())


def alone() -> Serving:
    return Serving((Variant("main", MAIN),))


def tasks(n: int = 12) -> list[Task]:
    return TaskSource(CONFIG.environment, 0).batch(0, 4) * (n // 4)


@dataclass
class Pool:
    """Ends every episode at once, with success; keeps what it was asked."""

    asked: list[EpisodeSpec] = field(default_factory=list)

    async def run(
        self,
        specs: Sequence[EpisodeSpec],
        bundles: Any,
        level: str,
        done: Callable[[Any], None],
        admission: Any = None,
    ) -> list[EpisodeResult]:
        self.asked += specs
        return [EpisodeResult(self.end(spec)) for spec in specs]

    @staticmethod
    def end(spec: EpisodeSpec) -> Trajectory:
        return Trajectory(
            spec.id, spec.task.id, spec.round, spec.role, spec.harness_id, spec.policy_version,
            spec.seed, Outcome("completed"), 1.0, True, 3, (), Cost(10, 2), {},
            dict(spec.task.features),
        )  # fmt: skip


@dataclass
class Engines:
    """What an `Evaluator` uses of a stack."""

    pool: Pool = field(default_factory=Pool)
    measured: dict[Any, Any] = field(default_factory=dict)


def evaluator(path: Path, engines: Engines) -> Evaluator:
    source = TaskSource(CONFIG.environment, 0, SealedReads(path / "reads.jsonl").add)
    run = RunDir(path)
    return Evaluator(run, CONFIG, cast(Stack, engines), source, LiveTable(None))


def measure(evaluator: Evaluator, number: int, serving: Serving, version: int = 1) -> Any:
    return asyncio.run(evaluator.measure(number, serving, version, True))


def test_one_harness_rolls_out_exactly_as_before():
    plain = episode_specs(
        0, "0000/incumbent", 0, tasks(), [(MAIN.id, "incumbent")], 3, 2, "round 0"
    )
    routed = routed_specs(0, "0000/incumbent", 0, tasks(), alone(), "incumbent", 3, 2, "round 0")
    assert routed == plain
    assert alone().inputs == MAIN.id
    assert alone().mix(tasks()) == {}


def test_each_task_rolls_out_under_the_variant_that_its_features_lead_to():
    specs = routed_specs(0, "p", 0, tasks(), several(), "incumbent", 0, 2, "d")
    for spec in specs:
        lamp = spec.task.features["task_type"] == "look_light"
        assert spec.harness_id == (LAMP.id if lamp else MAIN.id)
    mix = several().mix(tasks(4))
    assert {name: len(own) for name, own in mix.items()} == {
        name: len({s.task.id for s in specs if s.harness_id == several().bundle(name).id})
        for name in ("main", "R0-01")
    }


def test_the_phases_inputs_name_every_variant_and_what_routes():
    assert several().inputs != several(Routing()).inputs
    assert several().inputs[0][:2] == ["main", MAIN.id]


def test_a_measurement_routes_and_its_record_names_who_served(tmp_path):
    engines = Engines()
    found = evaluator(tmp_path, engines)
    measure(found, 0, several())
    (record,) = found._known[1, "heldout"]
    assert record.harness_id == MAIN.id
    assert {name: item.harness_id for name, item in record.variants.items()} == {
        "main": MAIN.id,
        "R0-01": LAMP.id,
    }
    for spec in engines.pool.asked:
        served = record.variants["main" if spec.harness_id == MAIN.id else "R0-01"]
        assert spec.task.id in served.task_ids


def test_what_was_measured_is_not_rolled_out_again_unless_the_routing_changed(tmp_path):
    engines = Engines()
    found = evaluator(tmp_path, engines)
    for serving in (alone(), several()):
        before = len(engines.pool.asked)
        first = measure(found, 0, serving)
        assert len(engines.pool.asked) > before
        again = measure(found, 1, serving)
        assert again["splits"] == first["splits"]
        assert again["tokens"] == [0, 0]
    before = len(engines.pool.asked)
    measure(found, 2, several(Routing()))  # everything goes to main: measured already
    assert len(engines.pool.asked) == before
    reopened = evaluator(tmp_path, engines)
    measure(reopened, 3, several())
    assert len(engines.pool.asked) == before


@pytest.fixture
def pointed(tmp_path: Path) -> Any:
    """As much of a loop as moves the pointer."""
    loop = Loop.__new__(Loop)
    loop.store = Store(tmp_path / "store")
    for item in (MAIN, LAMP):
        loop.store.add(item)
    loop.store.move("incumbent", MAIN.id, round=0)

    def point(number: int, before: Bundle, after: Bundle, outcome: str) -> None:
        loop.state = EvolutionState.start(after)
        loop._point(number, before.id, {"outcome": outcome, "reason": "why"})

    return loop.store, point


def test_a_rollback_is_a_line_of_the_lineage_and_a_resumed_run_adds_none(pointed):
    store, point = pointed
    rounds = [
        (0, MAIN, LAMP, "applied"),
        (1, LAMP, LAMP, "rejected"),
        (2, LAMP, MAIN, "rolled_back"),
    ]
    for _ in range(2):  # the second time as a resumed run goes through them
        for item in rounds:
            point(*item)
        assert store.pointer("incumbent") == MAIN.id
        moves = [(r.event, r.round, r.id) for r in store.records().records if r.pointer]
        assert moves == [
            ("pointer", 0, MAIN.id),
            ("pointer", 0, LAMP.id),
            ("rollback", 2, MAIN.id),
        ]


# --- a whole run, its episodes ended by a rule ---

RECIPE = """
schema: 1
name: conflict
selector: batch
analyst: rules
director: catalogue
proposer: {catalogue: {files: [%s], k: 1}}
screens: [manifest, canonical, build, smoke]
acceptor: {paired: {repeats: 2, repeats_max: 2}}
router: {isolated: {variants: 2, by: [task_type]}}
patience: 9
"""


class Ruled(Pool):
    """With a goal filter carrying works and lamps do not; without one it is the reverse."""

    async def run(self, specs, bundles, level, done, admission=None):
        self.asked += specs
        return [EpisodeResult(self.ruled(spec, bundles)) for spec in specs]

    def ruled(self, spec: EpisodeSpec, bundles: Path) -> Trajectory:
        filtered = "goal_filter" in (bundles / spec.harness_id / "harness.yaml").read_text()
        success = filtered != (spec.task.features["task_type"] == "look_light")
        return replace(self.end(spec), success=success, reward=float(success))


def conflict(path: Path, name: str) -> RunConfig:
    catalogue = ROOT / "configs" / "evolve" / "catalogue" / "household.yaml"
    (path / "conflict.yaml").write_text(RECIPE % catalogue)
    types = "[look_light, pick_place]"
    return load_config(
        ROOT / "configs" / "smoke.yaml",
        [
            f"runs_dir={path}", f"name={name}", "mode=harness", "rounds=3", "tasks.per_round=12",
            "tasks.samples=4", f"evolution.recipe={path / 'conflict.yaml'}",
            "environment.options.counts={evolve: 24, heldout: 12}",
            f"environment.options.task_types={types}", "evaluation.episodes=12",
            "evaluation.final=12",
        ],
    )  # fmt: skip


def go(path: Path, name: str, pool: Pool) -> RunDir:
    config = conflict(path, name)
    run = RunDir.create(path / name, config, {})
    stack = Stack(config, None, cast(Any, None), cast(Any, pool), "in_process", "")
    with run:
        asyncio.run(Loop(run, config, stack, LiveTable(None)).go())
    return run


def test_a_run_forks_routes_its_rollouts_and_is_measured_by_routing(tmp_path):
    pool = Ruled()
    run = go(tmp_path, "whole", pool)
    rounds = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert rounds[0]["evolution"]["outcome"] == "forked"
    assert rounds[0]["variants"] == {}
    assert rounds[0]["heldout"]["success"] == 0.5
    assert {name: item["tasks"] for name, item in rounds[1]["variants"].items()} == {
        "main": 7,
        "R0-01": 5,
    }
    assert rounds[1]["harness_id"] == rounds[0]["harness_id"]
    assert rounds[1]["evolve"]["success"] == rounds[1]["heldout"]["success"] == 1.0
    assert rounds[0]["evolution"]["rollouts"] > 0
    held_out = Evaluation.from_json(json.loads(run.evaluation(1).read_text()), "heldout")
    assert {len(item.task_ids) for item in held_out.variants.values()} == {6}
    again = Ruled()
    resumed = go(tmp_path, "whole", again)
    assert again.asked == []
    assert (resumed.path / "metrics.jsonl").read_text() == "\n".join(map(json.dumps, rounds)) + "\n"
