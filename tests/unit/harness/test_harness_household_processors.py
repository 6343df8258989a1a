"""The processors that the household world's small model needs."""

from __future__ import annotations

import random

import pytest

from harness.build import build
from harness.bundle import load
from harness.events import BeforeModel, Message, ModelResponse, StepStart, TaskView, ToolResult
from harness.processor import Context
from harness.processors.goal_filter import GoalFilter
from harness.processors.history_window import HistoryWindow
from harness.processors.holding_state import HoldingState
from harness.processors.household_text import Facts, facts, task_of
from harness.processors.loop_guard import LoopGuard
from harness.processors.numbered_menu import NumberedMenu, menu_answer
from harness.processors.observation_shaping import ObservationShaping
from harness.processors.place_memory import PlaceMemory
from harness.processors.system_prompt import SystemPrompt

TASK = TaskView("put a clean apple in fridge.", "household", action_tool="act")


def context(files: dict[str, bytes] | None = None) -> Context:
    return Context(TASK, "it", random.Random(0), host=None, files=files or {})  # type: ignore[arg-type]


def before(*choices: str, content: str = "shelf 1: apple 1") -> BeforeModel:
    return BeforeModel(3, (Message("user", "task"), Message("user", content, tuple(choices))))


def result(text: str, *choices: str) -> ToolResult:
    return ToolResult(0, "c", "act", text, choices=tuple(choices))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "You arrive at shelf 1. On the shelf 1, you see a apple 1, and a cup 2.",
            Facts(place="shelf 1", seen=("apple 1", "cup 2")),
        ),
        ("You arrive at fridge 1. The fridge 1 is closed.", Facts(place="fridge 1")),
        (
            "You open the fridge 1. The fridge 1 is open. In it, you see nothing.",
            Facts(place="fridge 1", seen=()),
        ),
        ("You pick up the apple 1 from the shelf 1.", Facts(taken="apple 1")),
        ("You move the apple 1 to the fridge 1.", Facts(put="apple 1")),
        ("You heat the apple 1 using the microwave 1.", Facts(treated=("apple 1", "hot"))),
        ("Nothing happens.", Facts()),
    ],
)
def test_the_worlds_sentences_are_read(text: str, expected: Facts) -> None:
    assert facts(text) == expected


def test_the_goal_is_read_from_the_opening_observation() -> None:
    assert (
        task_of("You are in a room.\n\nYour task is to: put a cup in sink.") == "put a cup in sink"
    )
    assert task_of("You see nothing.") is None


def test_observation_shaping_shortens_places_and_marks_what_it_cuts() -> None:
    shaping = ObservationShaping(max_chars=40)
    (shaped,) = shaping.after_tool(
        result("You arrive at shelf 1. On the shelf 1, you see a apple 1."), context()
    )
    assert shaped.content == "shelf 1: apple 1"
    (cut,) = shaping.after_tool(result("x" * 50), context())
    assert cut.content.endswith("[10 characters cut]")
    opening = StepStart(0, (Message("user", "Welcome\n\nYour task is to: find a cup."),))
    (first,) = shaping.step_start(opening, context())
    assert first.history[0].content == "task: find a cup"


def test_the_history_window_keeps_the_opening_and_whole_exchanges() -> None:
    history = [Message("user", "task")]
    for i in range(3):
        history += [Message("assistant", f"a{i}"), Message("user", f"o{i}")]
    (one,) = HistoryWindow(turns=1).step_start(StepStart(3, tuple(history)), context())
    assert [m.content for m in one.history] == ["task", "a2", "o2"]
    (none,) = HistoryWindow(turns=0).step_start(StepStart(3, tuple(history)), context())
    assert [m.content for m in none.history] == ["task", "o2"]
    (all_kept,) = HistoryWindow(turns=3).step_start(StepStart(3, tuple(history)), context())
    assert all_kept.history == tuple(history)


def test_the_goal_filter_drops_what_cannot_serve_and_never_everything() -> None:
    keep = ("take apple 1 from shelf 1", "go to fridge 1")
    (event,) = GoalFilter().before_model(
        before("look", "take cup 1 from shelf 1", *keep), context()
    )
    assert event.messages[-1].choices == keep
    (untouched,) = GoalFilter().before_model(before("look", "help"), context())
    assert untouched.messages[-1].choices == ("look", "help")


def test_holding_state_names_the_object_and_its_treatment() -> None:
    holding, ctx = HoldingState(), context()
    list(holding.after_tool(result("You pick up the apple 1 from the shelf 1."), ctx))
    list(holding.after_tool(result("You clean the apple 1 using the sinkbasin 1."), ctx))
    (event,) = holding.before_model(before(), ctx)
    assert event.messages[-1].content.endswith("holding: apple 1 (clean)")
    list(holding.after_tool(result("You move the apple 1 to the fridge 1."), ctx))
    (event,) = holding.before_model(before(), ctx)
    assert event.messages[-1].content.endswith("holding: nothing")


def test_place_memory_prunes_seen_places_while_the_hands_are_empty() -> None:
    memory, ctx = PlaceMemory(mode="both"), context()
    list(memory.after_tool(result("You arrive at shelf 1. On the shelf 1, you see nothing."), ctx))
    (event,) = memory.before_model(before("go to shelf 1", "go to fridge 1"), ctx)
    assert event.messages[-1].choices == ("go to fridge 1",)
    assert event.messages[-1].content.endswith("seen: shelf 1")
    list(memory.after_tool(result("You pick up the apple 1 from the fridge 1."), ctx))
    (event,) = memory.before_model(before("go to shelf 1"), ctx)
    assert event.messages[-1].choices == ("go to shelf 1",)
    list(memory.after_tool(result("You move the apple 1 to the shelf 2."), ctx))
    (event,) = memory.before_model(before("go to shelf 1"), ctx)
    assert event.messages[-1].content.endswith("seen: nothing")


def test_the_loop_guard_stops_offering_what_gave_the_same_answer_again() -> None:
    from harness.events import ToolCall

    guard, ctx = LoopGuard(repeats=2), context()
    for _ in range(2):
        list(guard.before_tool(ToolCall(0, "c", "act", {"command": "look"}), ctx))
        list(guard.after_tool(result("You see nothing."), ctx))
    (event,) = guard.before_model(before("look", "go to shelf 1"), ctx)
    assert event.messages[-1].choices == ("go to shelf 1",)
    (alone,) = guard.before_model(before("look"), ctx)
    assert alone.messages[-1].choices == ("look",)


@pytest.mark.parametrize("labels", ["number", "none"])
def test_a_menu_answer_leads_back_to_its_action(labels: str) -> None:
    menu, ctx = NumberedMenu(max_items=2, labels=labels), context()  # type: ignore[arg-type]
    (event,) = menu.before_model(before("look", "help", "go to shelf 1"), ctx)
    listed = [
        c for c in ("look", "help", "go to shelf 1") if menu_answer(c, event.messages[-1].content)
    ]
    assert len(listed) == 2
    said = menu_answer(listed[1], event.messages[-1].content)
    (response,) = menu.after_model(ModelResponse(3, said or ""), ctx)
    assert response.content == listed[1]


def test_an_answer_that_is_no_label_is_passed_on() -> None:
    menu, ctx = NumberedMenu(), context()
    (event,) = menu.before_model(before("look"), ctx)
    assert "look [0]" in event.messages[-1].content
    for said in ("[7]", "dance"):
        (response,) = menu.after_model(ModelResponse(3, said), ctx)
        assert response.content == said


def test_the_menu_is_shuffled_by_the_episodes_seed_alone() -> None:
    choices = tuple(f"go to shelf {i}" for i in range(8))
    texts = {
        next(iter(NumberedMenu().before_model(before(*choices), context()))).messages[-1].content
        for _ in range(3)
    }
    assert len(texts) == 1


def test_a_missing_system_prompt_is_named() -> None:
    from harness.events import TaskStart

    with pytest.raises(FileNotFoundError, match=r"prompts/system\.md"):
        list(SystemPrompt().task_start(TaskStart(TASK), context()))
    files = {"prompts/system.md": b"Be brief.\n"}
    (event,) = SystemPrompt().task_start(TaskStart(TASK, "First."), context(files))
    assert event.system_prompt == "First.\n\nBe brief."


def test_h0_of_the_quickstart_builds_in_a_fixed_order() -> None:
    bound = build(load("configs/harness/household"), allow_own_code=False)
    assert [b.id for b in bound] == [
        "holding_state",
        "observation_shaping",
        "history_window",
        "numbered_menu",
    ]
