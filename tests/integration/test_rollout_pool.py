"""The pool over real Ray workers and real harness processes; the engine is scripted."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import ray

from harness.bundle import dump, load
from rollout.config import EnvironmentConfig, RolloutConfig
from rollout.envs import make_env
from rollout.episode import EpisodeResult
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

    faults: signals by file name; at its 3rd call a process takes the first whose file (in `where`)
    is not there, makes it and sends itself the signal. fail: every call is an engine error. slow:
    calls that take so many seconds, by their number.
    """

    def __init__(
        self,
        tokenizer: str,
        where: Path = Path(),
        faults: Mapping[str, int] | None = None,
        fail: bool = False,
        slow: Mapping[int, float] | None = None,
    ) -> None:
        self._tokenizer, self._where, self._fail = tokenizer, where, fail
        self._faults, self._slow = faults or {}, slow or {}
        self._calls = 0

    async def generate(self, requests: Sequence[Request]) -> list[Sample]:
        self._calls += 1
        if self._fail:
            raise EngineError("the engine is gone")
        for name, number in self._faults.items() if self._calls == 3 else ():
            try:
                (self._where / name).touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), number)
            break
        await asyncio.sleep(self._slow.get(self._calls, 0))
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


def roll(
    tokenizer: str,
    bundles: tuple[Path, str],
    engine: Chooser,
    seen: list[str] | None = None,
    **settings: object,
) -> list:
    def progress(result: EpisodeResult) -> None:
        if seen is not None:
            seen.append(result.trajectory.id)

    async def run() -> list:
        config = RolloutConfig(**{"workers": 1, "concurrency": 4, "max_new_tokens": 24, **settings})
        pool = RolloutPool(ENVIRONMENT, config, tokenizer, engine)  # type: ignore[arg-type]
        try:
            await pool.start()
            return await pool.run(specs(bundles[1]), bundles[0], "agent", progress)
        finally:
            await pool.close()

    return asyncio.run(run())


def key(results: list) -> list[tuple]:
    return [
        (t.id, t.reward, t.steps, [s.token_ids.tolist() for s in t.segments])
        for t in (r.trajectory for r in results)
    ]


@pytest.fixture(scope="module")
def undisturbed(tokenizer: str, bundles: tuple[Path, str]) -> list:
    return roll(tokenizer, bundles, Chooser(tokenizer), workers=1, concurrency=3)


def test_one_worker_killed_and_one_stopped_change_no_result_and_each_episode_counts_once(
    tokenizer: str, bundles: tuple[Path, str], tmp_path: Path, undisturbed: list
) -> None:
    seen: list[str] = []
    engine = Chooser(tokenizer, tmp_path, {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP})
    again = roll(tokenizer, bundles, engine, seen, workers=2, worker_deadline_s=5)
    assert {file.name for file in tmp_path.iterdir()} == {"killed", "stopped"}
    assert key(again) == key(undisturbed)
    assert [r.trajectory.id for r in again] == [s.id for s in specs(bundles[1])]
    assert sorted(seen) == sorted(s.id for s in specs(bundles[1]))
    assert all(r.trajectory.outcome.kind == "completed" for r in again)
    assert all("seccomp" in r.trajectory.sandbox for r in again)


def test_an_episode_past_its_deadline_is_given_up_and_tried_again(
    tokenizer: str, bundles: tuple[Path, str], undisturbed: list
) -> None:
    seen: list[str] = []
    engine = Chooser(tokenizer, slow={2: 3600.0})
    late = roll(tokenizer, bundles, engine, seen, scheduling="continuous", episode_deadline_s=10)
    assert key(late) == key(undisturbed)
    assert sorted(seen) == sorted(s.id for s in specs(bundles[1]))


def test_an_engine_that_never_answers_stops_the_phase_and_scores_nothing(
    tokenizer: str, bundles: tuple[Path, str]
) -> None:
    with pytest.raises(RolloutError, match=r"12 of 12 episodes ended in infrastructure errors"):
        roll(tokenizer, bundles, Chooser(tokenizer, fail=True), retries=1)
