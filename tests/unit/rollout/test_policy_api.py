"""The API engine against a scripted server on localhost: what each reply becomes, and what it costs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llm_server import HANG, KEY, Server, calls, completion, fails, says, scripted

from harness.bundle import Bundle
from harness.events import Message, ToolCallSpec, ToolSpec
from harness.evolve.llm.account import Spent
from harness.evolve.llm.errors import LLMSetupError
from harness.host import ModelReply
from harness.processors.parse_repair import calls_in
from harness.sandbox.inprocess import run_inprocess
from rollout.conversation import ChatPolicy
from rollout.envs.toolbox import ToolboxEnv
from rollout.episode import EpisodeResult, Limits, run_episode
from rollout.policy.api import APIActor, BudgetExhausted
from rollout.policy.base import ChatRequest, ContextOverflow, EngineError, Sampling
from rollout.policy.config import APIConfig
from rollout.spec import EpisodeSpec

REQUEST = ChatRequest(
    (
        Message("user", "What does a fork cost?"),
        Message("assistant", "", tool_calls=(ToolCallSpec("c1", "look_up", {"item": "fork"}),)),
        Message("tool", "12", tool_call_id="c1"),
    ),
    (ToolSpec("look_up", "A price."),),
    Sampling(temperature=0.5, max_tokens=64, seed=9),
)
Serve = Callable[..., "Served"]


class Served:
    def __init__(self, server: Server, **options: Any) -> None:
        settings = {"base_url": server.url, "model": "m", "max_retries": 2, "timeout_s": 5}
        self.config = APIConfig.model_validate({**settings, **options})
        self.server = server
        self.slept: list[float] = []
        self.actor = APIActor(self.config, KEY, self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def chat(self, request: ChatRequest = REQUEST) -> ModelReply:
        return asyncio.run(self.actor.chat(request))


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Server] = []

    def start(*answers: Any, **options: Any) -> Served:
        servers.append(Server(scripted(*answers)))
        return Served(servers[-1], **options)

    yield start
    for server in servers:
        server.close()


def test_messages_tools_and_the_seed_are_sent_and_a_call_comes_back(serve: Serve) -> None:
    served = serve(calls("submit", answer=12))
    reply = served.chat()
    assert reply == ModelReply(
        "", (ToolCallSpec("c1", "submit", {"answer": 12}),), "tool_calls", 100, 20
    )
    (sent,) = served.server.requests
    assert sent["seed"] == 9
    assert (sent["temperature"], sent["max_completion_tokens"]) == (0.5, 64)
    assert sent["messages"][1]["tool_calls"][0]["function"] == {
        "name": "look_up",
        "arguments": '{"item": "fork"}',
    }
    assert sent["messages"][2] == {"role": "tool", "content": "12", "tool_call_id": "c1"}
    assert sent["tools"][0]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert served.server.keys == [f"Bearer {KEY}"]


def test_a_server_that_refuses_seeds_gets_none(serve: Serve) -> None:
    served = serve(says("12"), seed=False)
    assert served.chat().finish_reason == "stop"
    assert "seed" not in served.server.requests[0]


def test_what_may_pass_is_tried_again_with_growing_jittered_pauses(serve: Serve) -> None:
    busy = fails(429, "slow down", retry_after="7")
    served = serve(busy, fails(503, "overloaded"), says("12"))
    assert served.chat().content == "12"
    assert len(served.slept) == 2
    assert served.slept[0] >= 7
    assert 0 <= served.slept[1] <= 2


@pytest.mark.parametrize(
    ("answer", "tries", "said"),
    [
        (fails(500, "broken"), 3, "HTTP 500"),
        (fails(429, "slow down"), 3, "HTTP 429"),
        (b"<html>", 3, "endpoint"),
        (fails(429, "You exceeded your current quota"), 1, "quota does not come back"),
        (fails(401, f"bad key {KEY}"), 1, "check the key"),
        (fails(404, "no such model"), 1, "no such model"),
        (says("", finish="content_filter"), 1, "withheld the answer"),
    ],
)
def test_no_answer_is_an_infrastructure_error_and_tells_no_key(
    serve: Serve, answer: Any, tries: int, said: str
) -> None:
    served = serve(answer)
    with pytest.raises(EngineError, match=said) as caught:
        served.chat()
    assert KEY not in str(caught.value)
    assert len(served.server.requests) == tries


def test_a_server_that_hangs_times_out_and_its_prompt_is_charged(serve: Serve) -> None:
    served = serve(HANG, timeout_s=0.2, max_retries=0)
    with pytest.raises(EngineError, match=r"no answer within 0\.2 s"):
        served.chat()
    assert (served.actor.total.failed, served.actor.total.prompt_tokens > 0) == (1, True)


def test_a_prompt_that_is_too_long_is_the_context_outcome(serve: Serve) -> None:
    served = serve(fails(400, "This model's maximum context length is 256 tokens."))
    with pytest.raises(ContextOverflow, match="maximum context length"):
        served.chat()


def test_a_cut_answer_says_so(serve: Serve) -> None:
    assert serve(says("It costs", finish="length")).chat().finish_reason == "length"


def test_arguments_that_are_no_object_stay_text_that_parse_repair_mends(serve: Serve) -> None:
    broken = [("look_up", '{"item": "fork",}'), ("submit", '{"answer": 3}')]
    message = {
        "role": "assistant",
        "content": "So:",
        "tool_calls": [
            {"id": f"c{i}", "type": "function", "function": {"name": n, "arguments": a}}
            for i, (n, a) in enumerate(broken)
        ],
    }
    reply = serve(completion(message, "tool_calls", (5, 5))).chat()
    assert (reply.tool_calls, reply.finish_reason) == ((), "stop")
    content, mended = calls_in(reply.content, {"look_up", "submit"}, "c")
    assert content == "So:"
    assert [(c.name, c.input) for c in mended] == [
        ("look_up", {"item": "fork"}),
        ("submit", {"answer": 3}),
    ]


def test_every_try_is_charged_and_a_later_process_goes_on_with_the_account(
    serve: Serve, tmp_path: Path
) -> None:
    ledger = tmp_path / "api_calls.jsonl"
    served = serve(b"<html>", says("12"), price_in=1.0, price_out=10.0)
    assert asyncio.run(served.actor.open_ledger(str(ledger))) == Spent()
    served.chat()
    total = served.actor.total
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [line["failed"] for line in lines] == [1, 0]
    assert lines[1]["money"] == pytest.approx((100 * 1.0 + 20 * 10.0) / 1e6)
    again = Served(served.server, price_in=1.0, price_out=10.0)
    assert asyncio.run(again.actor.open_ledger(str(ledger))) == total
    with ledger.open("a") as file:
        file.write('{"calls": 1, "fai')  # a kill in the middle of a line
    assert asyncio.run(again.actor.open_ledger(str(ledger))) == total
    assert len(ledger.read_text().splitlines()) == 2
    ledger.write_text('{"x": 1}\n' + ledger.read_text())
    with pytest.raises(EngineError, match="line 1 is no entry"):
        asyncio.run(again.actor.open_ledger(str(ledger)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": {"tokens": 400}}, r"the run's 400 are .*policy\.api\.budget\.tokens"),
        (
            {"budget": {"money": 0.001}, "price_in": 1, "price_out": 8},
            r"policy\.api\.budget\.money",
        ),
    ],
)
def test_a_call_that_the_budget_does_not_cover_is_not_made(
    serve: Serve, options: dict, said: str
) -> None:
    served = serve(says("12"), **options)
    served.chat()
    served.chat()
    with pytest.raises(BudgetExhausted, match=said):
        served.chat()
    assert len(served.server.requests) == 2


def test_calls_in_flight_count_against_the_budget(serve: Serve) -> None:
    served = serve(says("12"), budget={"tokens": 400})

    async def many() -> list[Any]:
        return await asyncio.gather(
            *(served.actor.chat(REQUEST) for _ in range(8)), return_exceptions=True
        )

    answers = asyncio.run(many())
    assert any(isinstance(a, BudgetExhausted) for a in answers)
    assert served.actor.total.tokens <= 400


def test_a_missing_key_and_a_budget_without_prices_are_refused_at_once() -> None:
    config = APIConfig(base_url="http://localhost/v1", model="m", api_key_env="NOT_SET_ANYWHERE")
    with pytest.raises(LLMSetupError, match="NOT_SET_ANYWHERE is not set"):
        config.key({})
    assert config.key({"NOT_SET_ANYWHERE": "k"}) == "k"
    with pytest.raises(ValueError, match="price_in and price_out are 0"):
        APIConfig.model_validate({"base_url": "http://h/v1", "model": "m", "budget": {"money": 1}})


# --- an episode on an API ---

ENV = ToolboxEnv(counts={"evolve": 3})


def roll(actor: APIActor) -> EpisodeResult:
    return asyncio.run(
        run_episode(
            0,
            EpisodeSpec("e", ENV.tasks("evolve")[0], "h", "incumbent", 0, 0, 7),
            env=ENV,
            bundle=Bundle(()),
            runner=run_inprocess,
            policy=ChatPolicy(actor, 1.0),
            limits=Limits(max_new_tokens=64),
        )
    )


def test_an_episode_on_an_api_has_a_score_and_a_cost_and_no_segments(serve: Serve) -> None:
    payload = ENV.tasks("evolve")[0].payload
    look, answer = calls("look_up", item=payload["wanted"][0]), payload["answer"]
    served = serve(look, calls("submit", answer=answer))
    trajectory = roll(served.actor).trajectory
    assert (trajectory.success, trajectory.reward, trajectory.steps) == (True, 1.0, 2)
    assert trajectory.segments == ()
    cost = trajectory.cost
    assert (cost.model_calls, cost.prompt_tokens, cost.sampled_tokens) == (2, 200, 40)
    seeds = [request["seed"] for request in served.server.requests]
    assert seeds[0] != seeds[1]
    assert [r["seed"] for r in _again(serve, look, answer).requests] == seeds


def _again(serve: Serve, look: dict, answer: int) -> Server:
    served = serve(look, calls("submit", answer=answer))
    roll(served.actor)
    return served.server


def test_a_dead_endpoint_is_never_a_failure_of_the_agent(serve: Serve) -> None:
    outcome = roll(serve(fails(500, "down")).actor).trajectory.outcome
    assert outcome.kind == "infra_error"
    assert "HTTP 500" in outcome.reason
    outcome = roll(serve(fails(400, "context_length_exceeded")).actor).trajectory.outcome
    assert outcome.kind == "truncated"
