"""`gymnasium:ID`: a Gymnasium environment whose observations are text and whose actions are few, or text.

Observations are text where the observation space is `Text`, or where the environment renders as
text (`render_mode="ansi"`, as the toy-text ones do). Actions are the names of a `Discrete` space, or any text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rollout.envs.base import EnvError, Environment, Observation, Score
from rollout.envs.factory import python_env
from rollout.envs.text import EnvironmentSpecError, TextTask
from rollout.spec import derive_seed
from rollout.task import SPLITS, Split

PREFIX = "gymnasium:"
COUNTS: Mapping[Split, int] = {"evolve": 120, "valid_seen": 40, "heldout": 60, "ood": 0}
_ANSI = re.compile(r"\x1b\[([0-9;]*)m")


def gymnasium_env(spec: str, **options: Any) -> Environment:
    """Raises EnvironmentSpecError where Gymnasium or the environment is missing, or is not text."""
    return python_env(
        "python:rollout.envs.gymnasium:GymnasiumText", id=spec.removeprefix(PREFIX), **options
    )


class GymnasiumText:
    """A Gymnasium environment as a TextEnvironment: a task is a seed of its `reset`.

    counts: tasks a split. max_steps: actions an episode. instruction: what the agent is told first.
    actions: names of a Discrete space's actions (default: their numbers). success_at: an episode is
    solved whose rewards sum to at least this. seed: of the tasks' seeds. make: further arguments of
    `gymnasium.make`. process: give each session a process of its own.
    """

    def __init__(
        self,
        id: str,
        counts: Mapping[str, int] | None = None,
        max_steps: int = 30,
        instruction: str = "",
        actions: Sequence[str] | None = None,
        success_at: float = 1.0,
        seed: int = 0,
        make: Mapping[str, Any] | None = None,
        process: bool = False,
    ) -> None:
        for split, count in (counts or {}).items():
            if split not in SPLITS or count < 0:
                raise EnvironmentSpecError(
                    f"counts has {split!r}: {count}; expected a count of 0 or more for one of "
                    f"{', '.join(SPLITS)}"
                )
        self.name = f"{PREFIX}{id}"
        self.sessions = "process" if process else "thread_safe"
        self.max_steps = max_steps
        self._id, self._make, self._seed = id, dict(make or {}), seed
        self._counts = {split: (counts or {}).get(split, COUNTS[split]) for split in SPLITS}
        self._success_at = success_at
        env = self._made()
        try:
            self._names = self._action_names(env.action_space, actions)
        finally:
            env.close()
        self._instruction = instruction or f"Act in {id}."
        if self._names and not instruction:
            self._instruction += f" Actions: {', '.join(self._names)}."

    def tasks(self, split: Split) -> Sequence[TextTask]:
        return tuple(
            TextTask(
                f"{split}-{index:04d}",
                self._instruction,
                # Gymnasium takes seeds of 32 bits.
                {"seed": derive_seed(self._id, self._seed, split, index) % (1 << 31)},
            )
            for index in range(self._counts[split])
        )

    def open(self, task: TextTask, seed: int) -> GymnasiumSession:
        """A session of the task; `seed` changes nothing: the task's own decides."""
        return GymnasiumSession(self._made(), task.data["seed"], self._names, self._success_at)

    def _made(self) -> Any:
        try:
            import gymnasium
        except ImportError as error:
            raise EnvironmentSpecError(
                f"environment {self.name} needs Gymnasium, which is not installed ({error}); run "
                "`pip install 'coevo[gym]'`"
            ) from error
        try:
            spec = gymnasium.spec(self._id)
            env: Any = gymnasium.make(spec, **self._make)
            if isinstance(env.observation_space, gymnasium.spaces.Text) or self._make:
                return env
            modes = env.metadata.get("render_modes", [])
            env.close()
            if "ansi" in modes:
                return gymnasium.make(spec, render_mode="ansi")
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise EnvironmentSpecError(f"environment {self.name}: {error}") from error
        raise EnvironmentSpecError(
            f"environment {self.name}: its observations are {env.observation_space} and it renders "
            f"as {', '.join(modes) or 'nothing'}; expected a Text space or render mode ansi. Wrap it "
            "and give it as python:MODULE:FACTORY"
        )

    def _action_names(self, space: Any, given: Sequence[str] | None) -> tuple[str, ...]:
        """Of a Discrete space, in its order; () for free text."""
        import gymnasium

        if isinstance(space, gymnasium.spaces.Text) and given is None:
            return ()
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise EnvironmentSpecError(
                f"environment {self.name}: its actions are {space}; expected Discrete or Text"
                + (", and `actions` names those of a Discrete space" if given is not None else "")
            )
        count = int(space.n)
        names = tuple(given) if given is not None else tuple(map(str, range(count)))
        if len(set(names)) != count:
            raise EnvironmentSpecError(
                f"environment {self.name}: actions are {list(names)}; expected {count} different "
                "names, one an action"
            )
        return names


class GymnasiumSession:
    """One episode. Its actions are numbered from the space's own start."""

    def __init__(self, env: Any, seed: int, names: tuple[str, ...], success_at: float) -> None:
        self._env, self._seed, self._names, self._success_at = env, seed, names, success_at
        self._total = 0.0

    def reset(self) -> Observation:
        self._total = 0.0
        seen, info = self._env.reset(seed=self._seed)
        return self._observe(seen, info)

    def step(self, action: str) -> Observation:
        wanted: Any = action.strip()
        if self._names:
            if wanted not in self._names:
                text = f"There is no action {wanted!r}; there are {', '.join(self._names)}."
                return Observation(text, self._names, is_error=True)
            wanted = int(self._env.action_space.start) + self._names.index(wanted)
        elif not self._env.action_space.contains(wanted):
            return Observation(
                f"{wanted!r} is no action of {self._env.action_space}.", is_error=True
            )
        seen, reward, terminated, truncated, info = self._env.step(wanted)
        self._total += float(reward)
        return self._observe(seen, info, bool(terminated or truncated))

    def score(self) -> Score:
        return Score(self._total, self._total >= self._success_at)

    def close(self) -> None:
        self._env.close()

    def _observe(self, seen: Any, info: Mapping[str, Any], done: bool = False) -> Observation:
        text = seen if isinstance(seen, str) else self._env.render()
        if not isinstance(text, str):
            raise EnvError(
                f"observation is a {type(seen).__name__} and renders as {type(text).__name__}"
            )
        mask = info.get("action_mask")
        admitted = (
            self._names
            if mask is None
            else tuple(name for name, on in zip(self._names, mask, strict=True) if on)
        )
        return Observation(_plain(text), () if done else admitted, done)


def _plain(text: str) -> str:
    """Terminal colours as brackets around what they mark (the toy-text ones mark the agent so)."""
    out = ""
    coloured = False
    for index, part in enumerate(_ANSI.split(text)):
        if index % 2 == 0:
            out += part
        elif (on := part not in ("", "0")) != coloured:
            out += "[" if on else "]"
            coloured = on
    return out.strip("\n")
