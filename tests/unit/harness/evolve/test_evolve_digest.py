"""The rule analyst, the director, and what they read: traces of the real run loop."""

from __future__ import annotations

import asyncio

import pytest
from evolve_world import H0, episode

from harness.build import build
from harness.events import TaskView
from harness.evolve.analysts.rules import Rules
from harness.evolve.directors.catalogue import CatalogueDirector
from harness.evolve.meta import Memory
from harness.evolve.parts import Situation
from harness.evolve.records import HistoryRecord, TraceStep
from harness.evolve.screens.dynamic import changed_inputs
from harness.evolve.traces import fired, trace_steps
from harness.host import ModelReply, ToolReply
from harness.metered import Budgets
from harness.pipeline import Pipeline
from harness.runloop import run
from harness.trace import Trace

RULES = Rules(object_verbs=("take",))


def steps(*pairs, flags=()):
    return tuple(TraceStep(n, a, o, tuple(flags)) for n, (a, o) in enumerate(pairs))


def digest(*episodes, memory=None):
    at = Situation(1, H0, tuple(episodes), memory or Memory(), 0)
    return asyncio.run(RULES.digest(at)), at


LOOP = steps(*[("look", "same")] * 4)


@pytest.mark.parametrize(
    ("category", "run"),
    [
        ("harness_error", episode(outcome="harness_error")),
        ("contract_violation", episode(outcome="contract_violation")),
        ("parse_error", episode(outcome="agent_error")),
        ("parse_error", episode(trace=steps(("hm", ""), flags=["no_action"]))),
        ("invalid_action", episode(trace=steps(("fly", "Nothing happens."), flags=["invalid"]))),
        ("loop", episode(trace=LOOP)),
        ("no_progress", episode(trace=steps(*[(f"go {n}", str(n % 2)) for n in range(9)]))),
        (
            "wrong_object",
            episode(trace=steps(("take mug 1", "ok")), instruction="heat some apple."),
        ),
        ("gave_up", episode()),
        ("truncated", episode(outcome="truncated")),
        ("unknown", episode(outcome="odd")),
    ],
)
def test_each_failure_category_is_found(category, run):
    assert category in RULES.categories(run)


def test_a_clean_pass_has_no_category():
    good = episode(success=True, trace=steps(("take apple 1", "ok")), instruction="an apple.")
    assert RULES.categories(good) == ()


def test_actionability_has_the_published_levels():
    found, _ = digest(
        *[episode("failed", n) for n in range(2)],
        *[episode("flaky", n, success=n > 0) for n in range(2)],
        *[episode("fragile", n, success=True, trace=LOOP) for n in range(2)],
        *[episode("solid", n, success=True) for n in range(2)],
        episode("lost", outcome="infra_error"),
    )
    assert [(item.verdict, item.actionability) for item in found.tasks] == [
        ("failed", 1.0),
        ("flaky", 0.8),
        ("fragile", 0.3),
        ("solid", 0.0),
    ]
    assert found.actionability == 1.0


def test_evidence_names_components_and_anchors():
    found, _ = digest(episode(trace=LOOP, ref="traces/a.json", tokens=50_000))
    (item,) = found.tasks
    assert item.categories == ("loop", "gave_up")
    assert item.components == ("window",)  # context management answers for loops
    assert item.excerpts[-1].anchor == "traces/a.json#step=3"
    assert found.compression > 500


def test_the_director_puts_the_heaviest_category_and_last_regressions_first():
    loops = [episode(f"l{n}", trace=LOOP) for n in range(2)]
    cut = [episode("c0", outcome="truncated")]
    found, at = digest(*loops, *cut)
    plan = asyncio.run(CatalogueDirector().plan(at, found))
    assert [item.category for item in plan.objectives] == ["gave_up", "loop", "truncated"]
    broke = HistoryRecord(0, "C-R0-01", "h", "p", ("memory",), "w", "k", "apply", regressed=("c0",))
    memory = Memory(history=(broke,))
    found, at = digest(*loops, *cut, memory=memory)
    plan = asyncio.run(CatalogueDirector(regressed_weight=5).plan(at, found))
    assert plan.objectives[0].category == "truncated"
    assert plan.regressed == ("c0",)
    assert "memory" not in plan.untried


class Scripted:
    """A host that answers `1` and refuses the second action."""

    async def model(self, request):
        return ModelReply("1", prompt_tokens=10, sampled_tokens=1)

    async def tool(self, request):
        bad = request.step == 1
        text = "Nothing happens." if bad else f"ok {request.input['command']}"
        return ToolReply(text, bad, ("look", "go to shelf 1"), done=request.step == 2)


def traced(bundle):
    async def go():
        trace = Trace("r", "full")
        await run(
            Pipeline(build(bundle, allow_own_code=False)),
            TaskView("find it", "world", action_tool="act"),
            ToolReply("start", choices=("look", "go to shelf 1")),
            Scripted(),
            seed=3,
            budgets=Budgets(max_steps=5),
            trace=trace,
        )
        return trace.to_json()

    return asyncio.run(go())


def test_steps_flags_and_counts_are_read_from_a_real_trace():
    trace = traced(H0)
    found = trace_steps(trace)
    assert [step.step for step in found] == [0, 1, 2]
    assert {step.action for step in found} <= {"look", "go to shelf 1"}
    assert [step.flags for step in found] == [(), ("invalid",), ()]
    assert fired(trace)["menu"] == 6  # before_model and after_model, three steps
    assert fired(trace)["tool:act"] == 3


def test_a_changed_input_after_equal_actions_is_the_harness_at_work():
    from harness.edit import SetParam, apply

    shorter = apply(H0, SetParam("window", "turns", 1))
    same = apply(H0, SetParam("window", "turns", 9))

    def as_episode(bundle):
        return episode(harness=bundle.id, trace=trace_steps(traced(bundle)))

    base = as_episode(H0)
    assert changed_inputs([as_episode(shorter)], [base]) == 1
    assert changed_inputs([as_episode(same)], [base]) == 0
