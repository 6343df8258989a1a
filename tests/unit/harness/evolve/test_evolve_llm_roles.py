"""The roles that answer one question each: analyst, director, critic, leakage screen."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

import pytest
from evolve_world import H0, World, helps
from llm_server import Server, chat_with, config, fails, says

pytest.importorskip("openai")

from harness.bundle import Component, File
from harness.edit import AddComponent, PutFile
from harness.evolve.analysts.llm import LLMAnalyst
from harness.evolve.analysts.rules import Rules
from harness.evolve.catalogue import load_catalogue
from harness.evolve.critics.llm import LLMCritic
from harness.evolve.directors.llm import LLMDirector
from harness.evolve.llm.errors import EndpointError
from harness.evolve.meta import Memory
from harness.evolve.parts import PartFailed, Situation
from harness.evolve.proposers.catalogue import make_candidate
from harness.evolve.recipe import RECIPES
from harness.evolve.records import HistoryRecord, Landscape
from harness.evolve.screens.leakage_llm import LeakageLLM

WORLD = World(helps("goal_filter", low=0.4), tasks=4)
RULES = Rules(object_verbs=("take",))
SECRET = "pick_and_place-Apple-None-Fridge-12"
EPISODES = tuple(
    replace(run, ref=f"rounds/0001/traces.gz#{SECRET}/{n}")
    for n, run in enumerate(WORLD.history(H0))
)
GOAL_FILTER = AddComponent(
    Component("goal_filter", "control_flow", "harness.processors.goal_filter:GoalFilter")
)
BROKE = HistoryRecord(
    0, "C-R0-01", "h", "p", ("prompt",), "because", "k", "apply", 0.1, regressed=("task-01",)
)


@pytest.fixture
def ask():
    """ask(respond, coroutine function of a Situation, memory) -> (result, server, chat)."""
    servers = []

    def go(respond, what, memory=None):
        server = Server(respond)
        servers.append(server)
        chat, _ = chat_with(config(server.url))
        at = Situation(
            1, H0, EPISODES, memory or Memory(), 7, deny=("the-answer", SECRET), llm=chat
        )

        async def run():
            try:
                return await what(at)
            finally:
                await chat.close()

        return asyncio.run(run()), server, chat

    yield go
    for server in servers:
        server.close()


def asked(request):
    return request["messages"][1]["content"]


def findings(request, **change):
    """A good answer to a digester's question, or one with `change` in its first entry."""
    tasks = []
    for part in re.split(r"^## Task ", asked(request), flags=re.M)[1:]:
        anchor = re.search(r"\[(\d+\.\d+)\]", part)[1]
        tasks.append(
            {
                "task": part.split("\n")[0],
                "category": "wrong_object",
                "components": ["menu"],
                "anchors": [anchor],
                "finding": "It takes a thing that the goal does not name.",
            }
        )
    tasks[0] |= change
    return says(json.dumps({"tasks": tasks}))


def test_the_model_explains_and_the_rules_keep_the_facts(ask):
    digest, server, _ = ask(findings, LLMAnalyst(rules=RULES, batch=2).digest)
    facts = asyncio.run(RULES.digest(Situation(1, H0, EPISODES, Memory(), 7)))
    said = {item.task: item for item in digest.tasks}
    for fact in facts.tasks:
        item = said[fact.task]
        assert (item.runs, item.passed, item.verdict) == (fact.runs, fact.passed, fact.verdict)
        if fact.actionability > 0:
            assert item.finding.startswith("It takes")
            assert item.components == ("menu",)
            excerpt = item.excerpts[0]
            assert excerpt.text.startswith("take ")
            assert excerpt.anchor in {f"{r.ref}#step={s.step}" for r in EPISODES for s in r.trace}
    failing = sum(item.actionability > 0 for item in facts.tasks)
    assert len(server.requests) == -(-failing // 2)


def test_a_role_reads_neither_a_denied_term_nor_a_task_id(ask):
    _, server, _ = ask(findings, LLMAnalyst(rules=RULES).digest)
    text = json.dumps(server.requests)
    assert "task-00" in text
    assert SECRET not in text
    assert "the-answer" not in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"anchors": ["9.9"]}, "there are no anchors ['9.9']"),
        ({"task": "task-99"}, "exactly one entry for each"),
        ({"components": ["nothing"]}, "no components ['nothing']"),
        ({"category": "Wrong Object!"}, "is no name_like_this"),
        ({"finding": " "}, "finding must have 1 to 400"),
        ({"passed": 4}, "Extra inputs"),
    ],
)
def test_a_finding_that_does_not_fit_the_traces_is_refused(ask, change, said):
    analyst = LLMAnalyst(rules=RULES, batch=9)

    def once(request):
        return findings(request, **(change if len(request["messages"]) == 2 else {}))

    digest, server, _ = ask(once, analyst.digest)
    assert said in server.requests[1]["messages"][-1]["content"]
    assert digest.tasks[0].finding
    with pytest.raises(PartFailed, match="digester: 2 answers"):
        ask(lambda request: findings(request, **change), analyst.digest)


def test_a_batch_that_fails_cuts_no_other_off(ask):
    answered = []

    def respond(request):
        if "## Task task-00" in asked(request):
            return fails(400, "no")
        answered.append(request)
        return findings(request)

    with pytest.raises(EndpointError):
        ask(respond, LLMAnalyst(rules=RULES, batch=1).digest)
    assert len(answered) == len(OPEN) - 1


@pytest.mark.parametrize("analyst", [RULES, LLMAnalyst(rules=RULES, max_asked=1)])
def test_five_million_trace_tokens_become_a_digest_500_times_smaller(ask, analyst):
    world = World(helps("goal_filter", low=0.1), tasks=200)
    episodes = tuple(replace(e, tokens=6250) for e in world.history(H0))
    assert sum(e.tokens for e in episodes) == 5_000_000

    async def digest(at):
        return await analyst.digest(replace(at, episodes=episodes))

    found, _, _ = ask(findings, digest)
    assert found.raw_tokens == 5_000_000
    assert found.compression >= 500
    assert len(found.tasks) > 100
    assert found.tasks[0].excerpts
    assert found.tasks[0].actionability == 1.0


DIGEST = asyncio.run(RULES.digest(Situation(1, H0, EPISODES, Memory(), 7)))
OPEN = sorted(item.task for item in DIGEST.tasks if item.actionability > 0)


def plan(*objectives):
    return says(json.dumps({"objectives": objectives}))


def aim(*tasks, category="wrong_object"):
    return {"category": category, "tasks": list(tasks), "direction": "Offer fitting objects only."}


def test_the_planner_orders_and_the_weights_are_counted(ask):
    respond = lambda _: plan(aim(*OPEN), aim(OPEN[0], category="gave_up"))  # noqa: E731
    landscape, _, _ = ask(respond, lambda at: LLMDirector().plan(at, DIGEST))
    first, second = landscape.objectives
    worth = {item.task: item.actionability for item in DIGEST.tasks}
    assert first.weight == pytest.approx(sum(worth[t] for t in OPEN) - worth[OPEN[0]] / 2)
    assert second.weight == pytest.approx(worth[OPEN[0]] / 2)
    assert first.direction == "Offer fitting objects only."
    assert "control_flow" in landscape.untried


def test_no_objective_is_an_answer_too(ask):
    landscape, _, _ = ask(lambda _: plan(), lambda at: LLMDirector().plan(at, DIGEST))
    assert landscape.objectives == ()


def test_a_broken_task_that_still_fails_must_be_named(ask):
    assert "task-01" in OPEN
    others = [task for task in OPEN if task != "task-01"]

    def respond(request):
        return plan(aim(*others) if len(request["messages"]) == 2 else aim("task-01", *others))

    memory = Memory(history=(BROKE,))
    landscape, server, _ = ask(respond, lambda at: LLMDirector().plan(at, DIGEST), memory)
    assert "broken tasks ['task-01']" in server.requests[1]["messages"][-1]["content"]
    assert landscape.regressed == ("task-01",)


def test_a_plan_for_unknown_tasks_is_given_up(ask):
    with pytest.raises(PartFailed, match="no tasks"):
        ask(lambda _: plan(aim("task-77")), lambda at: LLMDirector().plan(at, DIGEST))


ENTRY = load_catalogue(RECIPES / "catalogue" / "household.yaml")[0]


def candidates(at, n=2):
    made = make_candidate("C-R1-01", ENTRY, "x", (GOAL_FILTER,), at, DIGEST)
    return tuple(
        replace(
            made,
            candidate_id=f"C-R1-{i:02d}",
            manifest=replace(made.manifest, candidate_id=f"C-R1-{i:02d}"),
        )
        for i in range(1, n + 1)
    )


def review(at, regressed=(), held_back=()):
    landscape = Landscape((), regressed=regressed, held_back=held_back)
    return LLMCritic().review(at, DIGEST, landscape, candidates(at))


def opinions(verdicts, ranking, regressed=()):
    return says(
        json.dumps(
            {
                "verdicts": [
                    {"candidate_id": name, "verdict": verdict, "reason": "so it seems"}
                    for name, verdict in verdicts.items()
                ],
                "ranking": ranking,
                "regressed": [{"task": task, "answer": "the filter holds"} for task in regressed],
            }
        )
    )


def test_the_critic_ranks_refuses_and_asks_for_a_revision(ask):
    respond = lambda _: opinions({"C-R1-01": "reject", "C-R1-02": "accept"}, ["C-R1-02"])  # noqa: E731
    found, server, _ = ask(respond, review)
    assert found.ranking == ("C-R1-02",)
    assert found.rejected == {"C-R1-01": "so it seems"}
    assert "add goal_filter (control_flow" in asked(server.requests[0])
    respond = lambda _: opinions({"C-R1-01": "revise", "C-R1-02": "accept"}, ["C-R1-02"])  # noqa: E731
    assert ask(respond, review)[0].revise == {"C-R1-01": "so it seems"}


@pytest.mark.parametrize(
    "bad",
    [
        says("I like the first one."),
        opinions({"C-R1-01": "accept"}, ["C-R1-01"]),
        opinions({"C-R1-01": "accept", "C-R1-02": "reject"}, []),
        opinions({"C-R1-01": "accept", "C-R1-02": "reject"}, ["C-R1-02"]),
    ],
)
def test_an_opinion_that_cannot_be_used_refuses_every_candidate(ask, bad):
    found, server, chat = ask(lambda _: bad, review)
    assert found.ranking == ()
    assert sorted(found.rejected) == ["C-R1-01", "C-R1-02"]
    assert "no opinion" in found.rejected["C-R1-01"]
    assert chat.spent.calls == len(server.requests) == 2


def test_the_critic_must_say_something_about_each_broken_task(ask):
    verdicts = {"C-R1-01": "accept", "C-R1-02": "reject"}

    def respond(request):
        said = ("task-01",) if len(request["messages"]) > 2 else ()
        return opinions(verdicts, ["C-R1-01"], said)

    found, server, _ = ask(respond, lambda at: review(at, ("task-01",)))
    assert "nothing is said about ['task-01']" in server.requests[1]["messages"][-1]["content"]
    # the manifest itself names it among the tasks that would improve
    assert found.ranking == ("C-R1-01",)


def test_a_kind_held_back_does_not_ship_whatever_the_model_says(ask):
    found, server, _ = ask(lambda _: fails(500, "x"), lambda at: review(at, (), ("control_flow",)))
    assert found.ranking == ()
    assert set(found.rejected.values()) == {"kind control_flow is held back"}
    assert server.requests == []


def leak(verdict, *reasons):
    return says(json.dumps({"verdict": verdict, "reasons": reasons, "explanation": "I see."}))


def screen(at):
    return LeakageLLM().check(candidates(at)[0], at, at.episodes, WORLD.evaluate)


def test_the_leakage_screen_passes_and_refuses_by_name(ask):
    assert ask(lambda _: leak("pass"), screen)[0].ok
    found = ask(lambda _: leak("refuse", "grader_gaming", "unbounded_work"), screen)[0]
    assert not found.ok
    assert found.note == "grader_gaming, unbounded_work: I see."


@pytest.mark.parametrize("bad", [says("fine"), leak("refuse"), leak("pass", "leakage"), says("")])
def test_a_leakage_answer_that_is_unreadable_three_times_refuses(ask, bad):
    found, server, chat = ask(lambda _: bad, screen)
    assert not found.ok
    assert "unreadable 3 times" in found.note
    assert chat.spent.calls == len(server.requests) == 3


def test_an_unreachable_model_leaves_no_leakage_verdict(ask):
    with pytest.raises(EndpointError):
        ask(lambda _: fails(401, "who are you"), screen)


def test_an_edit_that_cannot_be_read_whole_is_refused_unseen(ask):
    text = "x" * 900
    long = AddComponent(
        Component("plan", "control_flow", "harness.processors.planning:Planning", {"prompt": text})
    )

    def check(*edits, **params):
        def on(at):
            item = make_candidate("C-R1-01", ENTRY, "x", edits, at, DIGEST)
            return LeakageLLM(**params).check(item, at, (), WORLD.evaluate)

        return on

    found, server, _ = ask(lambda _: leak("pass"), check(long))
    assert found.ok
    assert text in asked(server.requests[0])
    found, server, _ = ask(lambda _: leak("pass"), check(long, max_diff=800))
    assert "800 are read" in found.note
    assert server.requests == []
    binary = PutFile("notes/a.bin", File(b"\0\xff"))
    found, server, _ = ask(lambda _: leak("pass"), check(GOAL_FILTER, binary))
    assert "'notes/a.bin' is no text" in found.note
    assert server.requests == []
