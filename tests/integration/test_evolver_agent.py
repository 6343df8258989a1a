"""The Evolver's sessions: the real SDK against a scripted server, evolved code in the real sandbox."""

from __future__ import annotations

import asyncio
import json
import random
import re
from dataclasses import replace

import pytest
from llm_server import Server, calls, chat_with, completion, config, fails, says

pytest.importorskip("openai")

from harness.bundle import Bundle, Component
from harness.edit import AddComponent, diff
from harness.evolve.engine import evolve
from harness.evolve.journal import Journal
from harness.evolve.meta import Memory, edit_key
from harness.evolve.parts import EvolutionInfraError, PartFailed, Situation
from harness.evolve.proposers import replay
from harness.evolve.proposers.agent import AgentProposer
from harness.evolve.recipe import load_recipe
from harness.evolve.records import (
    Digest,
    Episode,
    Evidence,
    Excerpt,
    Landscape,
    Objective,
    TraceStep,
)
from harness.evolve.screens.static import CanonicalForm, ManifestComplete
from harness.evolve.state import EvolutionState
from harness.sandbox import Sandbox

if not (Sandbox.probe().bubblewrap or Sandbox.probe().landlock):
    pytest.skip("no sandbox on this machine", allow_module_level=True)

H0 = Bundle(
    (
        Component(
            "menu", "output_plumbing", "harness.processors.numbered_menu:NumberedMenu",
            {"max_items": 12},
        ),
        Component("window", "context_mgmt", "harness.processors.history_window:HistoryWindow"),
    )
)  # fmt: skip
STEPS = tuple(TraceStep(n, f"take mug {n}", f"You see mug {n}.", (), f"d{n}") for n in range(6))


def run_of(task: str, seed: int, bundle: Bundle = H0, success: bool = False) -> Episode:
    return Episode(
        task, seed, bundle.id, "completed", success, float(success), 6,
        instruction="put an apple in the fridge.", trace=STEPS, tokens=1000,
        fired={item.id: 5 for item in bundle.components},
    )  # fmt: skip


EPISODES = tuple(run_of(f"t{n}", seed) for n in range(6) for seed in range(4))
DIGEST = Digest(
    tuple(
        Evidence(
            f"t{n}", "put an apple in the fridge.", 4, 0, "failed", "loop", ("loop",),
            excerpts=(Excerpt(f"rounds/1#secret-id-{n}#step=0", "take mug 0 -> You see mug 0."),),
            actionability=1.0,
        )
        for n in range(6)
    )
)  # fmt: skip
LANDSCAPE = Landscape((Objective("loop", tuple(f"t{n}" for n in range(6)), 6.0, "break loops"),))
GUARD = "- {id: guard, kind: control_flow, entrypoint: 'harness.processors.loop_guard:LoopGuard'}"
OWN = "- {id: mine, kind: control_flow, entrypoint: 'parts/mine.py:Mine'}"
FINISH = {
    "bucket": "control_flow",
    "root_cause": "The same action is repeated.",
    "fix": "Repeated actions are no longer offered.",
    "failure_evidence": ["E1"],
    "will_unlock": ["t0", "t1"],
    "at_risk": [],
    "why_at_risk_hold": "No task passes now, so none can break.",
    "signature_type": "component",
    "signature_name": "guard",
}
ADD_GUARD = calls(
    "edit_file", path="harness.yaml", old="components:\n", new=f"components:\n{GUARD}\n"
)


def processor(body: str, head: str = "") -> str:
    """The source of a processor of the bundle's own."""
    return (
        f"{head}\nfrom harness.processor import Processor\n\n\nclass Mine(Processor):\n"
        f'    kind = "control_flow"\n\n    def before_model(self, event, ctx):\n        {body}\n'
        "        yield event\n"
    )


def own_code(body: str, head: str = "") -> tuple[dict, dict]:
    """The two calls that add such a processor."""
    return (
        calls("write_file", path="parts/mine.py", content=processor(body, head)),
        calls("edit_file", path="harness.yaml", old="components:\n", new=f"components:\n{OWN}\n"),
    )


class Session:
    """A server that answers the requests of one session in order, by how far the session is."""

    def __init__(self, *answers):
        self.answers = answers

    def __call__(self, request):
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        return self.answers[min(turn, len(self.answers) - 1)]


@pytest.fixture
def propose():
    """propose(respond, proposer=…) -> (candidates or the error, server, chat)."""
    servers = []

    def go(respond, proposer=None, memory=None, path=None, revise=None, landscape=LANDSCAPE):
        server = Server(respond)
        servers.append(server)
        chat, _ = chat_with(config(server.url), path)
        at = Situation(1, H0, EPISODES, memory or Memory(), 7, deny=("the-answer",), llm=chat)
        proposer = proposer or AgentProposer(k=1)

        async def run():
            try:
                if revise:
                    return await proposer.revise(at, DIGEST, landscape, *revise)
                return await proposer.propose(at, DIGEST, landscape)
            except (PartFailed, EvolutionInfraError) as error:
                return error
            finally:
                await chat.close()

        return asyncio.run(run()), server, chat

    yield go
    for server in servers:
        server.close()


def results(server: Server) -> list[str]:
    """What the tools said, in order, as the last request carries it."""
    return [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "tool"]


def test_a_session_edits_tries_and_hands_in_what_the_difference_says(propose):
    respond = Session(
        calls("list_files"),
        calls("parts", name="loop_guard"),
        ADD_GUARD,
        calls("try_bundle"),
        calls("diff"),
        calls("finish", **FINISH),
    )
    (found,), server, chat = propose(respond)
    guard = Component("guard", "control_flow", "harness.processors.loop_guard:LoopGuard")
    assert found.edits == diff(H0, found.bundle) == (AddComponent(guard),)
    manifest = found.manifest
    assert (manifest.kinds, manifest.edits) == (("control_flow",), 1)
    assert manifest.failure_evidence == ("rounds/1#secret-id-0#step=0",)
    assert "secret-id" not in json.dumps(server.requests)
    assert "the-answer" not in json.dumps(server.requests)
    said = results(server)
    assert said[0].startswith("harness.yaml (")
    assert "it runs" in said[3]
    assert said[4].startswith("1 edits of kinds control_flow\nadd guard")
    assert chat.spent.calls == 6
    at = Situation(1, H0, EPISODES, Memory(), 7)
    for screen in (ManifestComplete(), CanonicalForm()):
        assert asyncio.run(screen.check(found, at, (), None)).ok  # type: ignore[arg-type]


def test_own_code_is_tried_in_the_sandbox_and_its_effect_is_measured(propose):
    body = (
        "from dataclasses import replace; m = event.messages[-1]; "
        "event = replace(event, messages=(*event.messages[:-1], replace(m, content=m.content + ' hm')))"
    )
    finish = {**FINISH, "signature_type": "model_input", "signature_name": "hm"}
    answer = Session(*own_code(body), calls("try_bundle"), calls("finish", **finish))
    (found,), server, _ = propose(answer)
    assert found.bundle.has_own_code
    assert "6 model calls would have read something else" in results(server)[2]
    assert [claim.type for claim in found.manifest.capability_evidence] == [
        "instantiates",
        "reaches_model",
    ]


@pytest.mark.parametrize(
    ("body", "head", "said"),
    [
        ("pass", "raise RuntimeError('at import')", "cannot be loaded: RuntimeError: at import"),
        ("1 / 0", "", "ZeroDivisionError"),
        ("exec('while True: pass')", "", "did not return"),
        ("import os; os.fork()", "", "harness failed"),
        ("raise SystemExit", "", "harness failed"),
        ("pass", "def (", "SyntaxError"),
    ],
)
def test_code_that_crashes_loops_or_forks_is_no_candidate(propose, monkeypatch, body, head, said):
    monkeypatch.setattr(replay, "LIMITS", replace(replay.LIMITS, silent_s=1.0))
    finish = {**FINISH, "signature_type": "model_input"}
    found, server, chat = propose(
        Session(*own_code(body, head), calls("finish", **finish), calls("stop", reason="no luck"))
    )
    assert isinstance(found, PartFailed)
    assert said in results(server)[2]
    assert chat.dropped == ["evolver: C-R1-01: stopped: no luck"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (calls("finish", **FINISH), "nothing differs from the incumbent"),
        (calls("read_file", path="../../etc/passwd"), "outside the working directory"),
        (calls("write_file", path="/tmp/x", content="x"), "outside the working directory"),
        (calls("edit_file", path="harness.yaml", old="no such text", new="x"), "does not hold"),
        (calls("write_file", path="a.md", content="x" * (1 << 20) + "x"), "1048577 bytes"),
        (calls("write_file", path="harness.yaml", content="components: {"), "wrote"),
        (calls("delete_file", path="gone.md"), "no such file"),
        (calls("parts", name="lop_guard"), "did you mean 'loop_guard'"),
    ],
)
def test_a_call_that_makes_no_sense_is_told_back(propose, call, said):
    found, server, _ = propose(Session(call, calls("try_bundle"), calls("stop", reason="enough")))
    assert isinstance(found, PartFailed)
    assert said in results(server)[0]
    if "components: {" in json.dumps(call):
        assert "this is no bundle: harness.yaml: not valid YAML" in results(server)[1]
        assert "coevo-scratch" not in json.dumps(server.requests)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bucket": "prompt"}, "bucket 'prompt' is none of the edit's kinds"),
        ({"will_unlock": ["t99"]}, "there are no tasks ['t99']"),
        ({"will_unlock": []}, "name tasks in will_unlock"),
        ({"failure_evidence": ["E9"]}, "there are no excerpts ['E9']"),
        ({"signature_name": "gard"}, "no component 'gard'"),
        ({"root_cause": "?"}, "root_cause"),
        ({"edits": 7}, "edits"),
    ],
)
def test_a_manifest_that_does_not_hold_is_told_back_and_can_be_mended(propose, change, said):
    bad = calls("finish", **{**FINISH, **change})
    found, server, _ = propose(Session(ADD_GUARD, bad, calls("finish", **FINISH)))
    told = json.dumps(server.requests[-1]["messages"][-1])
    assert said in told
    assert len(found) == 1


def test_an_edit_that_was_refused_before_is_not_handed_in_again(propose):
    guard = Component("guard", "control_flow", "harness.processors.loop_guard:LoopGuard")
    memory = Memory(refused={edit_key((AddComponent(guard),)): 0})
    stop = calls("stop", reason="nothing else")
    found, server, _ = propose(Session(ADD_GUARD, calls("finish", **FINISH), stop), memory=memory)
    assert "refused before" in results(server)[1]
    assert "stopped: nothing else" in str(found)


def test_a_kind_held_back_cannot_be_handed_in(propose):
    held = replace(LANDSCAPE, held_back=("control_flow",))
    respond = Session(ADD_GUARD, calls("finish", **FINISH), calls("stop", reason="then not"))
    _, server, _ = propose(respond, landscape=held)
    assert "kinds ['control_flow'] may not ship now" in results(server)[1]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (says("I would change the prompt."), "ended without finish"),
        (says("<think>" + "hm " * 50, finish="length"), "ended without finish"),
        (fails(400, "maximum context length is 10"), "maximum context length"),
        (calls("list_files"), "budget: 3 steps used of 3"),
    ],
)
def test_a_session_without_a_candidate_says_why(propose, answer, said):
    found, server, chat = propose(lambda _: answer, AgentProposer(k=1, max_steps=3))
    assert isinstance(found, PartFailed)
    assert said in str(found)
    assert chat.spent.calls == len(server.requests) > 0


def test_a_call_written_as_text_or_as_broken_json_counts(propose):
    spec = {"name": "edit_file", "arguments": ADD_GUARD["choices"][0]["message"]["tool_calls"][0]}
    spec["arguments"] = json.loads(spec["arguments"]["function"]["arguments"])
    as_text = says(f"<tool_call>{json.dumps(spec)}</tool_call>")
    broken = {"role": "assistant", "content": "", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "diff", "arguments": "{,"}}
    ]}  # fmt: skip
    respond = Session(as_text, completion(broken, "tool_calls", (9, 9)), calls("finish", **FINISH))
    (found,), server, _ = propose(respond)
    assert found.manifest.edits == 1
    assert "unreadable_arguments" in json.dumps(server.requests[-1]["messages"])


def test_several_authors_work_apart_and_equal_edits_count_once(propose):
    def respond(request):
        author = int(re.search(r"author (\d)", request["messages"][1]["content"])[1])
        finish = calls("finish", **FINISH)
        if author == 3:
            return Session(calls("stop", reason="no idea"))(request)
        return Session(ADD_GUARD, finish)(request)

    found, _, chat = propose(respond, AgentProposer(k=3))
    assert [item.candidate_id for item in found] == ["C-R1-01"]
    assert chat.dropped == [
        "evolver: C-R1-02: the same as C-R1-01",
        "evolver: C-R1-03: stopped: no idea",
    ]


def test_an_endpoint_that_fails_in_a_session_leaves_no_verdict(propose):
    found, _, _ = propose(Session(ADD_GUARD, fails(401, "who?")))
    assert isinstance(found, EvolutionInfraError)


def test_a_killed_session_goes_on_where_it_was_and_pays_nothing_twice(propose, tmp_path):
    path = tmp_path / "llm.jsonl"
    broken = Session(ADD_GUARD, calls("try_bundle"), fails(500, "down"))
    found, first, _ = propose(broken, path=path)
    assert isinstance(found, EvolutionInfraError)
    whole = Session(ADD_GUARD, calls("try_bundle"), calls("finish", **FINISH))
    (found,), second, chat = propose(whole, path=path)
    assert found.manifest.edits == 1
    assert len(second.requests) == 1
    assert chat.spent.calls == len(first.requests) + 1


def test_a_revision_starts_from_the_candidate(propose):
    (found,), _, _ = propose(Session(ADD_GUARD, calls("finish", **FINISH)))
    tuned = calls(
        "edit_file", path="harness.yaml", old="id: guard", new="params: {repeats: 3}\n  id: guard"
    )
    finish = calls("finish", **FINISH)
    again, server, _ = propose(Session(tuned, finish), revise=(found, "be more patient"))
    assert again.candidate_id == found.candidate_id
    assert again.bundle.component("guard").params == {"repeats": 3}
    assert again.manifest.edits == 1
    assert "be more patient" in server.requests[0]["messages"][1]["content"]
    given_up, _, chat = propose(
        Session(calls("stop", reason="no")), revise=(found, "be more patient")
    )
    assert given_up is None
    assert chat.dropped == ["evolver: revision of C-R1-01: stopped: no"]


def role_of(request) -> str:
    text = request["messages"][0]["content"]
    heads = {
        "You read the runs": "digester", "You plan": "planner", "You judge": "critic",
        "You check one edit": "leakage", "You improve": "evolver", "You are the only": "evolver",
    }  # fmt: skip
    return next(role for head, role in heads.items() if text.startswith(head))


class Team:
    """All roles of a good round; the guard really helps."""

    def __init__(self, **broken):
        self.broken = broken

    def __call__(self, request):
        role = role_of(request)
        if role in self.broken:
            return self.broken[role]
        return getattr(self, role)(request)

    def digester(self, request):
        parts = re.split(r"^## Task ", request["messages"][1]["content"], flags=re.M)[1:]
        tasks = [
            {
                "task": part.split("\n")[0], "category": "loop", "components": [],
                "anchors": [re.search(r"\[(\d+\.\d+)\]", part)[1]], "finding": "It repeats itself.",
            }
            for part in parts
        ]  # fmt: skip
        return says(json.dumps({"tasks": tasks}))

    def planner(self, request):
        tasks = re.findall(r"^task (\S+):", request["messages"][1]["content"], flags=re.M)
        aim = {"category": "loop", "tasks": tasks, "direction": "Break loops."}
        return says(json.dumps({"objectives": [aim]}))

    def evolver(self, request):
        return Session(ADD_GUARD, calls("finish", **FINISH))(request)

    def critic(self, request):
        names = re.findall(r"^## Candidate (\S+)", request["messages"][1]["content"], flags=re.M)
        verdicts = [{"candidate_id": n, "verdict": "accept", "reason": "good"} for n in names]
        return says(json.dumps({"verdicts": verdicts, "ranking": names, "regressed": []}))

    def leakage(self, request):
        return says(json.dumps({"verdict": "pass", "reasons": [], "explanation": "general"}))


async def rollouts(request):
    """The guard lifts the pass rate from 0 to 3/4."""
    return [
        run_of(task, seed, bundle, any(c.id == "guard" for c in bundle.components) and seed % 4 > 0)
        for task in request.tasks
        for seed in range(100 * request.draw, 100 * request.draw + request.repeats)
        for bundle in request.bundles
    ]


def one_round(recipe, respond, path=None, **settings):
    server = Server(respond)
    try:
        chat, _ = chat_with(config(server.url, **settings), path)
        loaded, parts = load_recipe(recipe)

        async def go():
            try:
                return await evolve(
                    loaded, parts, EvolutionState.start(H0, round=1), EPISODES, rollouts,
                    Journal(), random.Random(7), llm=chat,
                )  # fmt: skip
            finally:
                await chat.close()

        return asyncio.run(go()), chat
    finally:
        server.close()


@pytest.mark.parametrize("recipe", ["aegis", "aegis_paper", "single_agent"])
def test_a_whole_round_of_each_recipe_ships_an_edit_that_helps(recipe):
    result, chat = one_round(recipe, Team())
    assert result.outcome == "applied", result.reason
    assert result.incumbent.component("guard").kind == "control_flow"
    assert chat.spent.calls > 0
    json.dumps(result.to_json())


@pytest.mark.parametrize(
    ("broken", "outcome", "said"),
    [
        ({"digester": says('{"tasks": [')}, "no_op", "digester: 2 answers"),
        ({"planner": says("<think>what")}, "no_op", "planner: 2 answers"),
        ({"planner": says('{"objectives": []}')}, "no_op", "no failure category"),
        ({"evolver": says("nothing comes to mind")}, "no_op", "no session handed in"),
        ({"critic": says("```")}, "no_op", ""),
        ({"leakage": says("maybe")}, "rejected", ""),
        ({"critic": fails(429, "insufficient_quota")}, "aborted", "insufficient_quota"),
        ({"evolver": fails(503, "down")}, "aborted", "no endpoint answered"),
    ],
)
def test_no_bad_answer_ends_the_run_or_ships(broken, outcome, said):
    result, chat = one_round("aegis", Team(**broken))
    assert result.outcome == outcome, result.reason
    assert said in result.reason
    assert result.incumbent == H0
    assert chat.spent.calls > 0


def test_a_budget_that_ends_in_the_round_is_a_reason_and_no_crash():
    result, chat = one_round("aegis", Team(), budget={"tokens": 3000})
    assert result.outcome == "no_op"
    assert "evolution.llm.budget.tokens" in result.reason
    assert chat.spent.tokens <= 3000
