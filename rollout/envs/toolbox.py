"""ToolboxEnv: small sums over a price list, solved by calling tools; generated, with a verifier.

The environment for function-calling models: three tools with JSON schemas, no text actions. An
answer counts only where it is handed in by `submit`.
"""

from __future__ import annotations

import ast
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, get_args

from harness.events import TaskView, ToolSpec
from rollout.envs.base import EnvError, Observation, Score
from rollout.task import SPLITS, Split, Task

NAME = "toolbox"
Kind = Literal["single", "sum", "change"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Disjoint, so that no held-out item is ever seen.
ITEMS: Mapping[Split, tuple[str, ...]] = MappingProxyType(
    {
        "evolve": ("apple", "brush", "candle", "drum", "eraser", "fork", "glove", "hammer"),
        "valid_seen": ("apple", "brush", "candle", "drum", "eraser", "fork", "glove", "hammer"),
        "heldout": ("inkpot", "jug", "kettle", "ladder", "mirror", "needle", "oar", "pillow"),
        "ood": ("quilt", "ribbon", "saucer", "teapot", "umbrella", "vase", "whistle", "yarn"),
    }
)
COUNTS: Mapping[Split, int] = MappingProxyType(
    {"evolve": 120, "valid_seen": 40, "heldout": 60, "ood": 60}
)
OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = MappingProxyType(
    {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
)
LIMIT = 10**12


def _tool(name: str, description: str, argument: str, kind: str, about: str) -> ToolSpec:
    properties = {argument: {"type": kind, "description": about}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": [argument],
        "additionalProperties": False,
    }
    return ToolSpec(name, description, MappingProxyType(schema))


TOOLS = (
    _tool("look_up", "The price of an item, in coins.", "item", "string", "For example 'apple'."),
    _tool(
        "calculate",
        "The value of an expression of whole numbers, +, -, * and brackets.",
        "expression",
        "string",
        "For example '2 * (3 + 4)'.",
    ),
    _tool("submit", "Hand in the answer; this ends the task.", "answer", "integer", "In coins."),
)
_ARGUMENT: Mapping[str, tuple[str, type]] = MappingProxyType(
    {"look_up": ("item", str), "calculate": ("expression", str), "submit": ("answer", int)}
)


class ToolboxOptionError(ValueError):
    """An option of ToolboxEnv that makes no sense."""


class ToolboxEnv:
    """Price-list tasks. counts: tasks a split (those of COUNTS where left out). max_steps: tool calls
    an episode. seed: of the tasks. reward: "subgoals", half for the prices looked up and half for
    the answer, or "success"."""

    name = NAME
    thread_safe = True

    def __init__(
        self,
        counts: Mapping[str, int] | None = None,
        max_steps: int = 8,
        seed: int = 0,
        reward: Literal["success", "subgoals"] = "subgoals",
    ) -> None:
        for split, count in (counts or {}).items():
            if split not in SPLITS or count < 0:
                raise ToolboxOptionError(
                    f"counts has {split!r}: {count}; expected a count of 0 or more for one of "
                    f"{', '.join(SPLITS)}"
                )
        if max_steps < 1:
            raise ToolboxOptionError(f"max_steps is {max_steps}; expected 1 or more")
        if reward not in ("success", "subgoals"):
            raise ToolboxOptionError(f"reward is {reward!r}; expected 'success' or 'subgoals'")
        self.counts = {split: (counts or {}).get(split, COUNTS[split]) for split in SPLITS}
        self.max_steps, self.seed, self.reward = max_steps, seed, reward

    def tasks(self, split: Split) -> Sequence[Task]:
        """The kinds in turn; the i-th task depends on the environment's seed only."""
        if split not in SPLITS:
            raise ToolboxOptionError(f"split is {split!r}; expected one of {', '.join(SPLITS)}")
        return tuple(self._task(split, index) for index in range(self.counts[split]))

    def open(self, task: Task, seed: int) -> ToolboxSession:
        """A session of the task; `seed` changes nothing. Raises EnvError for another's task."""
        if task.environment != NAME or set(task.payload) != {"prices", "wanted", "answer"}:
            raise EnvError(
                f"task {task.id} is no task of {NAME!r}; open it with its own environment"
            )
        return ToolboxSession(task, self.max_steps, self.reward)

    def _task(self, split: Split, index: int) -> Task:
        rng = random.Random(f"{NAME}/{self.seed}/{split}/{index}")
        kind = KINDS[index % len(KINDS)]
        prices = {item: rng.randint(2, 99) for item in ITEMS[split]}
        first, second = rng.sample(ITEMS[split], 2)
        n, m = rng.randint(2, 9), rng.randint(2, 9)
        if kind == "single":
            wanted, answer = [first], n * prices[first]
            text = f"What do {n} x {first} cost?"
        elif kind == "sum":
            wanted, answer = [first, second], n * prices[first] + m * prices[second]
            text = f"What do {n} x {first} and {m} x {second} cost together?"
        else:
            paid = n * prices[first] + rng.randint(1, 50)
            wanted, answer = [first], paid - n * prices[first]
            text = f"{n} x {first} are paid with {paid} coins. How many coins come back?"
        return Task(
            id=f"{NAME}/{split}/{index:04d}-{kind}",
            environment=NAME,
            split=split,
            view=TaskView(
                f"{text} Look prices up, calculate, and submit the answer.",
                NAME,
                tools=TOOLS,
                max_steps=self.max_steps,
            ),
            features={"kind": kind},
            payload={"prices": prices, "wanted": wanted, "answer": answer},
        )


class ToolboxSession:
    """One episode. It ends with `submit`, or after `max_steps` tool calls."""

    def __init__(self, task: Task, max_steps: int, reward: str) -> None:
        self._task, self._max_steps, self._reward = task, max_steps, reward
        self.reset()

    def reset(self) -> Observation:
        self._steps = 0
        self._looked_up: set[str] = set()
        self._answer: int | None = None
        return Observation(self._task.view.instruction)

    def step(self, name: str, input: Mapping[str, Any]) -> Observation:
        """One tool call. Every call counts as a step, a bad one as well."""
        if self._done:
            return Observation("The task is over.", done=True, is_error=True)
        self._steps += 1
        problem = _problem(name, input)
        if problem:
            return Observation(problem, done=self._done, is_error=True)
        text, is_error = getattr(self, f"_{name}")(input[_ARGUMENT[name][0]])
        return Observation(text, done=self._done, is_error=is_error)

    def score(self) -> Score:
        wanted = set(self._task.payload["wanted"])
        found = len(wanted & self._looked_up) / len(wanted)
        success = self._answer == self._task.payload["answer"]
        shaped = (found + success) / 2
        detail = {"looked_up": found == 1, "answered": self._answer is not None}
        return Score(
            shaped if self._reward == "subgoals" else float(success),
            success,
            {**detail, "steps": self._steps},
        )

    def close(self) -> None:
        """Nothing to release."""

    @property
    def _done(self) -> bool:
        return self._answer is not None or self._steps >= self._max_steps

    def _look_up(self, item: str) -> tuple[str, bool]:
        price = self._task.payload["prices"].get(item)
        if price is None:
            return f"There is no item {item!r}.", True
        self._looked_up.add(item)
        return str(price), False

    def _calculate(self, expression: str) -> tuple[str, bool]:
        try:
            return str(value_of(expression)), False
        except ValueError as error:
            return f"Cannot calculate {expression[:80]!r}: {error}", True

    def _submit(self, answer: int) -> tuple[str, bool]:
        self._answer = answer
        return "Submitted.", False


def value_of(expression: str) -> int:
    """The value of +, -, * and brackets over whole numbers. Raises ValueError."""
    if len(expression) > 200:
        raise ValueError("longer than 200 characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("no expression") from error
    return _value(tree)


def _value(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -_value(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    else:
        raise ValueError("only whole numbers, +, -, * and brackets are known")
    if abs(value) > LIMIT:
        raise ValueError(f"a number beyond {LIMIT}")
    return value


def _problem(name: str, given: Mapping[str, Any]) -> str:
    if name not in _ARGUMENT:
        return f"There is no tool {name!r}; there are {', '.join(_ARGUMENT)}."
    argument, kind = _ARGUMENT[name]
    if type(given.get(argument)) is not kind:
        return f"{name} needs {argument!r}: {'a text' if kind is str else 'a whole number'}."
    return ""
