"""Environments of the user's own: the text protocol, its loader, and sessions in processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from coevo.config import load_config
from coevo.rollouts import TaskSource
from rollout.config import EnvironmentConfig
from rollout.envs import UnknownEnvironment, make_env
from rollout.envs.base import EnvError
from rollout.envs.text import EnvironmentSpecError, TextEnv
from rollout.task import SPLITS, SealedSplitError

COUNTER = '''
"""Count up to a number."""
import os
from dataclasses import dataclass
from rollout.envs.base import EnvError, Observation, Score
from rollout.envs.text import TextTask

class Count:
    name, sessions, max_steps = "count", "thread_safe", 4

    def __init__(self, sessions="thread_safe", goal=2):
        self.sessions, self.goal = sessions, goal
        self.step_timeout_s = 2.0

    def tasks(self, split):
        if split in ("evolve", "heldout"):
            return [TextTask(f"{split}-{i}", "Count.", {"goal": self.goal + i}) for i in range(3)]
        return ()

    def open(self, task, seed):
        return Session(task.data["goal"])

@dataclass
class Session:
    goal: int
    n: int = 0

    def reset(self):
        self.n = 0
        print("a word on standard output")
        return Observation("zero", ("up", "stop"))

    def step(self, action):
        if action == "break":
            raise EnvError("the counter is broken")
        if action == "exit":
            os._exit(3)
        if action == "hang":
            import time
            time.sleep(60)
        if action != "up":
            return Observation("what?", ("up", "stop"), is_error=True)
        self.n += 1
        return Observation(str(self.n), ("up", "stop"), done=self.n == self.goal)

    def score(self):
        return Score(self.n / self.goal, self.n == self.goal, {"pid": os.getpid()})
'''


@pytest.fixture
def counter(tmp_path: Path) -> str:
    file = tmp_path / "count.py"
    file.write_text(COUNTER)
    return f"python:{file}:Count"


def act(session: Any, command: str) -> Any:
    return session.step("act", {"command": command})


@pytest.mark.parametrize("sessions", ["thread_safe", "process"])
def test_a_session_runs_alike_in_the_worker_and_in_a_process_of_its_own(
    counter: str, sessions: str
) -> None:
    env = make_env(counter, sessions=sessions)
    task = env.tasks("evolve")[0]
    assert (task.id, task.view.action_tool) == ("count/evolve/evolve-0", "act")
    session = env.open(task, 0)
    try:
        first = session.reset()
        assert (first.text, first.choices) == ("Count.\nzero", ("up", "stop"))
        assert act(session, "down").is_error
        assert act(session, "up").text == "1"
        assert act(session, "up").done
        assert act(session, "up").is_error
        score = session.score()
        assert (score.reward, score.success) == (1.0, True)
        import os

        assert (score.detail["pid"] == os.getpid()) is (sessions == "thread_safe")
    finally:
        session.close()


def test_the_episode_ends_after_max_steps_and_a_bad_call_costs_one(counter: str) -> None:
    env = make_env(counter, goal=9)
    session = env.open(env.tasks("evolve")[0], 0)
    session.reset()
    assert session.step("look", {}).is_error
    assert not act(session, "up").done
    assert not act(session, "up").done
    last = act(session, "up")
    assert (last.done, last.choices) == (True, ())
    assert session.score().success is False


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("break", "the counter is broken"),
        ("exit", "ended with code 3"),
        ("hang", "longer than 2 s"),
    ],
)
def test_a_process_that_breaks_is_an_infrastructure_error_that_names_the_task(
    counter: str, command: str, said: str
) -> None:
    env = make_env(counter, sessions="process")
    session = env.open(env.tasks("evolve")[1], 0)
    session.reset()
    with pytest.raises(EnvError, match=f"task evolve-1.*{said}"):
        act(session, command)
    session.close()


def test_splits_hold_and_the_measured_ones_are_sealed(counter: str) -> None:
    env = make_env(counter)
    assert [len(env.tasks(split)) for split in SPLITS] == [3, 0, 3, 0]
    source = TaskSource(EnvironmentConfig(name=counter), 0)
    with pytest.raises(SealedSplitError):
        source.splits.tasks("heldout")
    with pytest.raises(ValueError, match="asks for 4 episodes of split 'heldout', which has 3"):
        source.check_size("heldout", 4)


def test_a_path_in_a_configuration_is_relative_to_its_file(
    tmp_path: Path, counter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = Path(__file__).parents[4] / "configs"
    (tmp_path / "it.yaml").write_text(
        f"extends: {configs / 'smoke.yaml'}\n"
        "environment: {name: 'python:count.py:Count', options: {}}\n"
    )
    monkeypatch.chdir("/")
    assert load_config(tmp_path / "it.yaml").environment.name == counter
    monkeypatch.chdir(tmp_path)
    given = ["environment.name=python:count.py:Count"]
    assert load_config(configs / "smoke.yaml", given).environment.name == counter


class Bad:
    name, sessions, max_steps = "bad", "thread_safe", 3

    def __init__(self, tasks: Any = None, **changes: Any) -> None:
        self.__dict__.update(changes)
        self._tasks = tasks or {}

    def tasks(self, split: str) -> Any:
        return self._tasks.get(split, ())

    def open(self, task: Any, seed: int) -> Any:
        raise AssertionError


def bad(**changes: Any) -> TextEnv:
    return TextEnv(Bad(**changes), "python:it:Bad")


def test_what_an_environment_lacks_is_named() -> None:
    from rollout.envs.text import TextTask

    one = TextTask("a", "Go.")
    with pytest.raises(
        EnvironmentSpecError, match="sessions is 'threads'; expected thread_safe or"
    ):
        bad(sessions="threads")
    with pytest.raises(EnvironmentSpecError, match="max_steps is 0; expected 1 or more"):
        bad(max_steps=0)
    with pytest.raises(EnvironmentSpecError, match=r"tasks\('evolve'\) is empty"):
        bad()
    with pytest.raises(
        EnvironmentSpecError, match=r"has a str; expected rollout\.envs\.text\.TextTask"
    ):
        bad(tasks={"evolve": ["a"]})
    with pytest.raises(EnvironmentSpecError, match="task id 'a' stands there twice"):
        bad(tasks={"evolve": [one], "heldout": [one]})
    with pytest.raises(EnvironmentSpecError, match="data of task 'a' is not JSON"):
        bad(tasks={"evolve": [TextTask("a", "Go.", {"when": object()})]})
    with pytest.raises(EnvironmentSpecError, match="it has no name; it has no sessions"):
        TextEnv(object(), "python:it:Bad")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("python:count", "expected python:MODULE:FACTORY"),
        ("python:no_such_module:make", "there is no module 'no_such_module'"),
        ("python:/no/such.py:make", "there is no file /no/such.py"),
        ("python:json:make", "json has no function 'make'"),
    ],
)
def test_a_spec_that_names_no_factory_says_what_to_do(spec: str, said: str) -> None:
    with pytest.raises(EnvironmentSpecError, match=said):
        make_env(spec)


def test_an_unknown_environment_names_the_loaders_too() -> None:
    with pytest.raises(UnknownEnvironment, match="python:MODULE:FACTORY, gymnasium:ID"):
        make_env("guess")


# --- gymnasium ---

LAKE = {
    "actions": ["left", "down", "right", "up"],
    "make": {"render_mode": "ansi", "is_slippery": False},
    "counts": {"evolve": 3, "heldout": 2},
}


@pytest.mark.parametrize("process", [False, True])
def test_a_gymnasium_environment_is_played_by_the_names_of_its_actions(process: bool) -> None:
    pytest.importorskip("gymnasium")
    env = make_env("gymnasium:FrozenLake-v1", process=process, **LAKE)
    session = env.open(env.tasks("heldout")[1], 0)
    try:
        first = session.reset()
        assert "[S]FFF\nFHFH\nFFFH\nHFFG" in first.text
        assert first.choices == ("left", "down", "right", "up")
        assert act(session, "jump").is_error
        for command in ("down", "down", "right", "down", "right", "right"):
            seen = act(session, command)
        assert seen.done
        assert "[G]" in seen.text
        assert session.score().success
    finally:
        session.close()


def test_an_action_mask_limits_what_is_offered() -> None:
    pytest.importorskip("gymnasium")
    names = ["south", "north", "east", "west", "pickup", "dropoff"]
    env = make_env("gymnasium:Taxi-v4", actions=names, counts={"evolve": 2, "heldout": 1})
    a, b = (env.open(task, 0).reset() for task in env.tasks("evolve"))
    assert set(a.choices) < set(names)
    assert a.text != b.text


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("CartPole-v1", {}, "expected a Text space or render mode ansi"),
        ("NoSuch-v0", {}, "NoSuch"),
        ("FrozenLake-v1", {"actions": ["a", "b"]}, "expected 4 different names"),
        ("FrozenLake-v1", {"counts": {"test": 3}}, "counts has 'test': 3"),
    ],
)
def test_a_gymnasium_environment_that_is_no_text_is_refused(
    name: str, options: dict[str, Any], said: str
) -> None:
    pytest.importorskip("gymnasium")
    with pytest.raises(EnvironmentSpecError, match=said):
        make_env(f"gymnasium:{name}", **options)


def test_without_gymnasium_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(EnvironmentSpecError, match=r"pip install 'coevo\[gym\]'"):
        make_env("gymnasium:FrozenLake-v1")
