"""The models' client against a real HTTP server: retries, fallbacks, budget, journal, bad answers."""

from __future__ import annotations

import asyncio
import json

import pytest
from llm_server import HANG, KEY, Server, calls, chat_with, config, fails, says, scripted
from pydantic import BaseModel, ValidationError

pytest.importorskip("openai")

from harness.evolve.llm.client import Ask
from harness.evolve.llm.config import LLMConfig
from harness.evolve.llm.errors import (
    BudgetExhausted,
    BudgetTooSmall,
    ContextExceeded,
    EndpointError,
    LLMSetupError,
    MalformedOutput,
)
from harness.evolve.parts import EvolutionInfraError, PartFailed

ASK = Ask("planner", ({"role": "user", "content": "How many?"},))


class Count(BaseModel):
    number: int


@pytest.fixture
def serve():
    servers = []

    def make(*answers):
        servers.append(Server(scripted(*answers)))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def run(chat, what):
    async def go():
        try:
            return await what
        finally:
            await chat.close()

    return asyncio.run(go())


def ask(chat, question=ASK):
    return run(chat, chat.ask(question))


def structured(chat, **more):
    return run(chat, chat.structured(ASK, Count, **more))


def test_an_answer_is_charged_in_tokens_and_money(serve):
    server = serve(says("three", tokens=(1000, 200)))
    chat, _ = chat_with(config(server.url, endpoint={"price_in": 2.0, "price_out": 10.0}))
    reply = ask(chat)
    assert (reply.content, reply.finish_reason, reply.counted) == ("three", "stop", True)
    assert (chat.spent.calls, chat.spent.tokens) == (1, 1200)
    assert chat.spent.money == pytest.approx(0.004)


def test_what_may_pass_is_tried_again_after_a_jittered_wait(serve):
    server = serve(fails(503, "overloaded"), says("yes"))
    chat, clock = chat_with(config(server.url))
    assert ask(chat).content == "yes"
    assert len(clock.slept) == 1
    assert 0 < clock.slept[0] < 1
    assert (chat.spent.calls, chat.spent.failed) == (2, 1)


def test_the_servers_own_wish_to_wait_is_kept(serve):
    chat, clock = chat_with(config(serve(fails(429, "slow down", retry_after="7"), says("y")).url))
    ask(chat)
    assert clock.slept == [7.0]


def test_a_used_up_quota_is_not_waited_for(serve):
    server = serve(fails(429, "You exceeded your current quota, check your plan"))
    chat, clock = chat_with(config(server.url, endpoint={"max_retries": 9}))
    with pytest.raises(EndpointError, match="used-up quota"):
        ask(chat)
    assert len(server.requests) == 1
    assert clock.slept == []


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (HANG, "no answer within 0.2 s"),
        (fails(500, "boom"), "HTTP 500: "),
        (fails(401, f"Incorrect API key provided: {KEY}"), "check the key in E0_KEY"),
        (fails(404, "no such model"), "HTTP 404"),
        ({"id": "x", "object": "chat.completion", "choices": []}, "holds no choice"),
        (b"<html>gateway</html>", "endpoint 'e0'"),
    ],
)
def test_trouble_goes_to_the_fallback_and_without_one_is_an_infrastructure_error(
    serve, trouble, said
):
    bad, good = serve(trouble), serve(says("ok"))
    endpoint = {"timeout_s": 0.2, "max_retries": 0, "api_key_env": "E0_KEY"}
    env = {"E0_KEY": KEY}
    chat, _ = chat_with(config(bad.url, good.url, endpoint=endpoint), env=env)
    assert ask(chat).content == "ok"
    alone, _ = chat_with(config(bad.url, endpoint=endpoint), env=env)
    with pytest.raises(EvolutionInfraError, match=said) as caught:
        ask(alone)
    assert KEY not in str(caught.value)
    assert alone.spent.calls == alone.spent.failed == 1


def test_an_endpoint_that_is_not_there_is_an_infrastructure_error(serve):
    server = serve(says("x"))
    server.close()
    chat, _ = chat_with(config(server.url))
    with pytest.raises(EndpointError, match="cannot be reached"):
        ask(chat)
    assert chat.spent.tokens == 0


def test_a_timed_out_call_is_charged_for_its_prompt(serve):
    chat, _ = chat_with(config(serve(HANG).url, endpoint={"timeout_s": 0.2, "max_retries": 0}))
    with pytest.raises(EndpointError):
        ask(chat)
    assert chat.spent.prompt_tokens > 0


def test_a_question_too_long_for_every_model_is_no_infrastructure_error(serve):
    text = "This model's maximum context length is 64 tokens."
    chat, _ = chat_with(config(serve(fails(400, text)).url))
    with pytest.raises(ContextExceeded) as caught:
        ask(chat)
    assert isinstance(caught.value, PartFailed)


@pytest.mark.parametrize(
    "text",
    [
        '{"number": 3}',
        '```json\n{"number": 3}\n```',
        'Sure!\n```\n{"number": 3}\n```\nBye {}',
        '<think>{"number": 9}</think>{"number": 3}',
        'hm, so</think>\n{"number": 3}',
        'The answer is {"number": 3}.',
    ],
)
def test_the_json_is_found_in_what_stands_around_it(serve, text):
    chat, _ = chat_with(config(serve(says(text)).url))
    assert structured(chat).number == 3


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (says('{"number": 3', finish="length"), "cut off at its token limit"),
        (says('```json\n{"number": 3'), "not one JSON object"),
        (says("<think>I wonder"), "never closed"),
        (says(""), "empty"),
        (says("three"), "no brace"),
        (says('{"number": NaN}'), "no JSON number"),
        (says('{"number": "many"}'), "number: "),
        (says("[3]"), "not one JSON object"),
    ],
)
def test_a_malformed_answer_is_complained_about_once_and_then_given_up(serve, bad, said):
    server = serve(bad, says('{"number": 4}'))
    chat, _ = chat_with(config(server.url))
    assert structured(chat).number == 4
    complaint = server.requests[1]["messages"][-1]["content"]
    assert said in complaint
    always = serve(bad)
    chat, _ = chat_with(config(always.url))
    with pytest.raises(MalformedOutput, match="planner: 2 answers could not be used") as caught:
        structured(chat)
    assert said in str(caught.value)
    assert isinstance(caught.value, PartFailed)
    assert chat.spent.calls == len(always.requests) == 2  # both are charged


def test_an_answer_that_parses_may_still_be_refused_with_a_reason(serve):
    server = serve(says('{"number": 3}'), says('{"number": 5}'))
    chat, _ = chat_with(config(server.url))
    found = structured(chat, check=lambda c: [] if c.number > 4 else [f"{c.number} is too few"])
    assert found.number == 5
    assert "3 is too few" in server.requests[1]["messages"][-1]["content"]


def test_the_schema_is_sent_strict(serve):
    server = serve(says('{"number": 3}'))
    structured(chat_with(config(server.url))[0])
    form = server.requests[0]["response_format"]["json_schema"]
    assert form["strict"]
    assert form["schema"] == {
        "type": "object",
        "properties": {"number": {"type": "integer"}},
        "required": ["number"],
        "additionalProperties": False,
    }
    plain = serve(says('{"number": 3}'))
    structured(chat_with(config(plain.url, endpoint={"structured": "none"}))[0])
    assert "response_format" not in plain.requests[0]


def test_the_budget_stops_before_the_call_that_could_pass_it(serve):
    server = serve(says("x", tokens=(100, 400)))
    chat, _ = chat_with(config(server.url, budget={"tokens": 1100}))

    async def go():
        await chat.ask(ASK)
        await chat.ask(Ask("critic", ASK.messages))
        with pytest.raises(BudgetExhausted, match=r"critic: the next call may take .* 1100"):
            await chat.ask(Ask("critic", ASK.messages, attempt=1))

    run(chat, go())
    assert len(server.requests) == 2


def test_calls_under_way_count_against_the_budget(serve):
    server = serve(says("x", tokens=(10, 10)))
    chat, _ = chat_with(config(server.url, budget={"money": 0.0011}, endpoint={"price_out": 1.0}))

    async def go():
        asked = [chat.ask(Ask("critic", ASK.messages, attempt=n)) for n in range(4)]
        return await asyncio.gather(*asked, return_exceptions=True)

    results = run(chat, go())
    assert sum(isinstance(item, BudgetExhausted) for item in results) == 2


def test_a_budget_too_small_for_two_rounds_is_said_before_the_start(serve):
    server = serve(says("x"))
    chat, _ = chat_with(config(server.url, budget={"tokens": 50_000}))
    chat.check_budget(rounds=1, per_round=30_000)
    chat.check_budget(rounds=9, per_round=25_000)
    with pytest.raises(BudgetTooSmall, match="at least 30000 tokens, and 2 rounds 60000"):
        chat.check_budget(rounds=9, per_round=30_000)
    assert server.requests == []


def test_a_killed_run_is_answered_from_the_journal_and_remembers_what_it_spent(serve, tmp_path):
    server = serve(fails(500, "x"), says("first"), says("second"))
    settings = config(server.url, endpoint={"api_key_env": "E0_KEY"})
    path = tmp_path / "llm.jsonl"
    env = {"E0_KEY": KEY}
    chat, _ = chat_with(settings, path, env)
    assert ask(chat).content == "first"
    again, _ = chat_with(settings, path, env)
    assert again.spent == chat.spent
    assert ask(again).content == "first"
    assert len(server.requests) == 2
    assert ask(again, Ask("planner", ASK.messages, attempt=1)).content == "second"
    assert again.spent.calls == 3
    assert server.keys[0] == f"Bearer {KEY}"
    assert KEY not in path.read_text()


def test_tool_calls_survive_the_journal(serve, tmp_path):
    server = serve(calls("read_file", path="a.md"))
    for _ in range(2):
        chat, _ = chat_with(config(server.url), tmp_path / "j")
        assert ask(chat).tool_calls == (("c1", "read_file", '{"path": "a.md"}'),)
    assert len(server.requests) == 1


def test_what_was_dropped_is_kept_with_its_reason(serve, tmp_path):
    chat, _ = chat_with(config(serve(says("x")).url), tmp_path / "j")
    asyncio.run(chat.drop("evolver", "C-R0-01", "it stopped"))
    again, _ = chat_with(config("http://localhost:1/v1"), tmp_path / "j")
    assert again.dropped == ["evolver: C-R0-01: it stopped"]


def test_a_missing_key_is_named_before_anything_is_spent(serve):
    server = serve(says("x"))
    settings = config(server.url, endpoint={"api_key_env": "NO_SUCH_KEY"})
    with pytest.raises(LLMSetupError, match="NO_SUCH_KEY"):
        chat_with(settings)
    assert server.requests == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"roles": {"default": ["man"]}}, "did you mean 'main'"),
        ({"roles": {"digestor": ["main"]}}, "did you mean 'digester'"),
        ({"roles": {"critic": ["main"]}}, "digester, planner, evolver, leakage have no endpoint"),
        ({"roles": {"default": []}}, "names no endpoint"),
        ({"budget": {"money": 1.0}}, "no endpoint has a price"),
        ({"endpoints": {"main": {"base_url": "localhost:8000", "model": "m"}}}, "http"),
        (
            {"endpoints": {"main": {"base_url": "http://me:pw@host/v1", "model": "m"}}},
            "holds credentials",
        ),
    ],
)
def test_a_configuration_that_cannot_work_says_what_to_change(change, said):
    good = {
        "endpoints": {"main": {"base_url": "http://localhost:8000/v1", "model": "m"}},
        "roles": {"default": ["main"]},
    }
    LLMConfig.model_validate(good)
    with pytest.raises(ValidationError) as caught:
        LLMConfig.model_validate({**good, **change})
    assert said in str(caught.value)


def test_a_role_of_its_own_goes_before_the_default():
    settings = config("http://a/v1", "http://b/v1", roles={"default": ["e0"], "critic": ["e1"]})
    assert settings.of("critic") == ("e1",)
    assert settings.of("planner") == ("e0",)
    json.dumps(settings.model_dump(mode="json"))
