"""The toolbox: tasks, tools, verifier; and a function-calling policy through the whole episode."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest
import trl

from harness.bundle import Bundle, load
from harness.component import Component
from harness.events import TaskView
from harness.sandbox.inprocess import run_inprocess
from rollout.conversation import TokenPolicy
from rollout.envs import make_env
from rollout.envs.base import EnvError
from rollout.envs.toolbox import ITEMS, ToolboxEnv, ToolboxOptionError, value_of
from rollout.episode import EpisodeResult, Limits, run_episode
from rollout.lockstep import Immediate
from rollout.policy.scripted import ScriptedEngine
from rollout.spec import EpisodeSpec
from rollout.task import SPLITS, Task
from rollout.tokens import Renderer

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_tokenizer import tokenizer

ENV = ToolboxEnv(counts={"evolve": 6, "heldout": 3})
H0 = Path(__file__).parents[4] / "configs" / "harness" / "toolbox"


def test_tasks_are_the_same_each_time_and_unseen_items_stay_unseen() -> None:
    first, again = ToolboxEnv().tasks("evolve"), make_env("toolbox").tasks("evolve")
    assert first == again
    assert [t.features["kind"] for t in first[:4]] == ["single", "sum", "change", "single"]
    assert first[1].view.instruction == (
        "What do 4 x fork and 2 x candle cost together? Look prices up, calculate, and submit the "
        "answer."
    )
    assert not set(ITEMS["evolve"]) & (set(ITEMS["heldout"]) | set(ITEMS["ood"]))
    assert len({t.id for s in SPLITS for t in ToolboxEnv().tasks(s)}) == 120 + 40 + 60 + 60
    assert all(t.payload["answer"] > 0 for s in SPLITS for t in ToolboxEnv().tasks(s))


def test_the_tools_answer_and_the_answer_is_verified() -> None:
    task = ENV.tasks("evolve")[0]
    (item,) = task.payload["wanted"]
    session = ENV.open(task, 0)
    assert session.reset().text == task.view.instruction
    assert session.score().reward == 0
    assert session.step("look_up", {"item": item}).text == str(task.payload["prices"][item])
    assert session.score().reward == 0.5
    assert session.step("calculate", {"expression": "2 * (3 + 4) - -1"}).text == "15"
    last = session.step("submit", {"answer": task.payload["answer"]})
    assert (last.done, last.is_error) == (True, False)
    score = session.score()
    assert (score.reward, score.success, score.detail["steps"]) == (1.0, True, 3)
    assert session.step("look_up", {"item": item}).is_error


def test_a_wrong_answer_ends_the_task_too() -> None:
    session = ENV.open(ENV.tasks("evolve")[0], 0)
    assert session.step("submit", {"answer": -1}).done
    assert (session.score().success, session.score().reward) == (False, 0.0)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("look_up", {"item": "unicorn"}, "no item 'unicorn'"),
        ("look_up", {}, "look_up needs 'item': a text"),
        ("submit", {"answer": "12"}, "a whole number"),
        ("submit", {"answer": True}, "a whole number"),
        ("fly", {}, "There is no tool 'fly'"),
        ("calculate", {"expression": "__import__('os')"}, "only whole numbers"),
        ("calculate", {"expression": "2 ** 9999"}, "only whole numbers"),
        ("calculate", {"expression": "9999999 * 9999999"}, "a number beyond"),
        ("calculate", {"expression": "(" * 150}, "no expression"),
        ("calculate", {"expression": "1 + " * 60 + "1"}, "longer than 200"),
    ],
)
def test_a_bad_call_is_told_and_counts(name: str, given: dict, said: str) -> None:
    session = ENV.open(ENV.tasks("evolve")[0], 0)
    seen = session.step(name, given)
    assert seen.is_error
    assert said in seen.text
    assert session.score().detail["steps"] == 1


def test_bad_options_and_foreign_tasks_are_refused() -> None:
    with pytest.raises(ToolboxOptionError, match="counts"):
        ToolboxEnv(counts={"train": 1})
    with pytest.raises(ToolboxOptionError, match="max_steps"):
        ToolboxEnv(max_steps=0)
    with pytest.raises(EnvError, match="no task of 'toolbox'"):
        ENV.open(Task("x", "household", "evolve", TaskView("", "household")), 0)


# --- the whole way: template, sampled text, parser, run loop, harness, environment, segments ---

END = "<|im_end|>"


def solver(text: str) -> str:
    """What a model would say to a prompt in Qwen3's form: the next call of the solution."""
    asked = re.findall(r"(\d+) x (\w+)", text)
    prices = dict(
        zip(
            re.findall(r'"item": ?"(\w+)"}', text),
            re.findall(r"<tool_response>\n(\d+)\n", text),
            strict=False,
        )
    )
    for _, item in asked:
        if item not in prices:
            # Another spelling than the template's own.
            return f'<tool_call>{{"name":"look_up","arguments":{{"item": "{item}"}}}}</tool_call>'
    total = value_of(" + ".join(f"{n} * {prices[item]}" for n, item in asked))
    paid = re.search(r"paid with (\d+)", text)
    answer = int(paid[1]) - total if paid else total
    return f'<tool_call>\n{{"name": "submit", "arguments": {{"answer": {answer}}}}}\n</tool_call>'


def roll(bundle: Bundle, say: object = solver, index: int = 1) -> EpisodeResult:
    made = tokenizer((Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text())
    renderer = Renderer(made)

    def script(prompt: tuple[int, ...]) -> list[int]:
        text = renderer._decode(prompt, False).partition(f"{END}\n")[2]  # after the tools' list
        return renderer.encode(say(text) + END)  # type: ignore[operator]

    async def one() -> EpisodeResult:
        batcher = Immediate(ScriptedEngine(script))
        batcher.enter(0)
        return await run_episode(
            0,
            EpisodeSpec("e", ENV.tasks("evolve")[index], "h", "incumbent", 0, 0, 7),
            env=ENV,
            bundle=bundle,
            runner=run_inprocess,
            policy=TokenPolicy(renderer, batcher, 1.0, 8192),
            limits=Limits(max_new_tokens=200),
        )

    return asyncio.run(one())


@pytest.mark.parametrize("index", range(3))
def test_a_function_calling_policy_solves_a_task_in_one_clean_segment(index: int) -> None:
    trajectory = roll(load(H0), index=index).trajectory
    assert (trajectory.success, trajectory.outcome.kind) == (True, "completed")
    assert trajectory.steps == len(ENV.tasks("evolve")[index].payload["wanted"]) + 1
    (segment,) = trajectory.segments
    assert trajectory.cost.sampled_tokens == int(segment.loss_mask.sum())


def test_a_malformed_call_reaches_parse_repair_as_text() -> None:
    def broken(text: str) -> str:
        return solver(text).replace('"arguments"', "arguments").replace("}}", "},}")

    repair = Component(
        "parse_repair", "output_plumbing", "harness.processors.parse_repair:ParseRepair"
    )
    mended = roll(Bundle((repair,)), broken).trajectory
    assert mended.success
    unmended = roll(Bundle(()), broken).trajectory
    assert (unmended.success, unmended.steps) == (False, 1)  # text without a call is a final answer


def test_words_without_a_call_end_the_episode_as_its_answer() -> None:
    trajectory = roll(Bundle(()), lambda text: "It costs 12 coins.").trajectory
    assert (trajectory.outcome.kind, trajectory.success) == ("completed", False)
    assert json.loads(json.dumps(dict(trajectory.detail)))["answered"] is False
