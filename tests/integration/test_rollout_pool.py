"""The pool over real Ray workers and real harness processes; the engine is scripted."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import ray

from harness.bundle import dump, load
from rollout.config import EnvironmentConfig, RolloutConfig
from rollout.envs import make_env
from rollout.policy.base import EngineError, Request, Sample
from rollout.pool import RolloutError, RolloutPool
from rollout.spec import EpisodeSpec, derive_seed
from rollout.tokens import Renderer

pytestmark = pytest.mark.slow

ENVIRONMENT = EnvironmentConfig(
    name="household", options={"max_receptacles": 4, "max_steps": 5, "counts": {"evolve": 6}}
)


class Chooser:
    """Answers with an offered action, by the request's seed. Lives in the worker's process.

    die_once: a file; where it is missing, the 3rd call makes it and ends the process. fail: every
    call is an engine error.
    """

    def __init__(self, tokenizer: str, die_once: str = "", fail: bool = False) -> None:
        self._tokenizer, self._die_once, self._fail = tokenizer, die_once, fail
        self._calls = 0

    async def generate(self, requests: Sequence[Request]) -> list[Sample]:
        self._calls += 1
        if self._fail:
            raise EngineError("the engine is gone")
        if self._die_once and self._calls == 3 and not os.path.exists(self._die_once):
            Path(self._die_once).touch()
            os._exit(1)
        renderer = Renderer.from_pretrained(self._tokenizer)
        samples = []
        for request in requests:
            menu = renderer.decode(request.prompt_ids).partition("options:\n")[2].split("\n")
            said = random.Random(request.sampling.seed).choice(menu)
            ids = renderer.encode(said + "<|end|>")
            samples.append(Sample(tuple(ids), (-1.0,) * len(ids), "stop", 0))
        return samples


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    from trainer.warmstart import make_tokenizer

    path = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(["go to shelf 1", "take apple 1 from shelf 1", "options:"], 400).save_pretrained(
        path
    )
    return str(path)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    root = tmp_path_factory.mktemp("objects")
    bundle = load("configs/harness/household")
    dump(bundle, root / bundle.id)
    return root, bundle.id


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    # Workers cannot import a test module: its classes travel by value.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def specs(harness_id: str) -> list[EpisodeSpec]:
    tasks = make_env(ENVIRONMENT.name, **ENVIRONMENT.options).tasks("evolve")
    return [
        EpisodeSpec(f"{task.id}/{k}", task, harness_id, "incumbent", 0, 0, derive_seed(task.id, k))
        for task in tasks
        for k in range(2)
    ]


def roll(tokenizer: str, bundles: tuple[Path, str], engine: Chooser, **settings: object) -> list:
    async def run() -> list:
        config = RolloutConfig(**{"workers": 2, "concurrency": 4, "max_new_tokens": 24, **settings})
        pool = RolloutPool(ENVIRONMENT, config, tokenizer, engine)  # type: ignore[arg-type]
        try:
            return await pool.run(specs(bundles[1]), bundles[0], "agent")
        finally:
            await pool.close()

    return asyncio.run(run())


def key(results: list) -> list[tuple]:
    return [
        (t.id, t.reward, t.steps, [s.token_ids.tolist() for s in t.segments])
        for t in (r.trajectory for r in results)
    ]


def test_results_are_the_same_with_one_worker_or_two_and_after_a_workers_death(
    tokenizer: str, bundles: tuple[Path, str], tmp_path: Path
) -> None:
    one = roll(tokenizer, bundles, Chooser(tokenizer), workers=1, concurrency=3)
    two = roll(tokenizer, bundles, Chooser(tokenizer))
    died = roll(tokenizer, bundles, Chooser(tokenizer, die_once=str(tmp_path / "died")))
    assert (tmp_path / "died").exists()
    assert key(one) == key(two) == key(died)
    assert [r.trajectory.id for r in died] == [s.id for s in specs(bundles[1])]
    assert all(r.trajectory.outcome.kind == "completed" for r in died)
    assert all("seccomp" in r.trajectory.sandbox for r in died)


def test_an_engine_that_never_answers_stops_the_phase_and_scores_nothing(
    tokenizer: str, bundles: tuple[Path, str]
) -> None:
    with pytest.raises(RolloutError, match=r"12 of 12 episodes ended in infrastructure errors"):
        roll(tokenizer, bundles, Chooser(tokenizer, fail=True), retries=1)
