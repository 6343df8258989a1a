"""Built-in parts of context and memory (D2, D3), each in an episode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from part_bench import CHAT, TEXT, Scripted, calls, episode, part

from harness.events import Message
from harness.host import ToolReply
from harness.processors.bm25 import best, scores, words
from harness.processors.front_matter import FrontMatterError, page, pages
from harness.shorten import head_and_tail

EXAMPLES = '{"input": "in a room", "output": "look"}\n\n{"input": "b", "output": "c"}\n'
SKILLS = {
    "skills/lamps.md": "---\nname: lamps\ndescription: how to find a lamp\n---\nLook on desks.",
    "skills/cooking.md": "---\nname: cooking\ndescription: heat food\n---\nUse the microwave.",
    "skills/notes.txt": "not a skill: lamp lamp lamp",
}


def few_shot(**params: object) -> object:
    return part("few_shot:FewShot", "prompt", **params)


def test_few_shot_examples_stand_below_the_system_prompt() -> None:
    host = Scripted(["done"])
    episode(host, few_shot(count=1), files={"prompts/examples.jsonl": EXAMPLES})
    assert host.main[0].messages[0] == Message(
        "system", "Examples:\n\nInput: in a room\nOutput: look"
    )


def test_few_shot_examples_can_be_turns_before_the_opening() -> None:
    host = Scripted([calls(("read", {"path": "a"})), "done"])
    episode(host, few_shot(mode="turns"), files={"prompts/examples.jsonl": EXAMPLES})
    roles = [(m.role, m.content) for m in host.main[1].messages[:5]]
    assert roles[:4] == [
        ("user", "in a room"),
        ("assistant", "look"),
        ("user", "b"),
        ("assistant", "c"),
    ]
    assert roles[4] == ("user", "You are in a room.")


@pytest.mark.parametrize(
    ("text", "reason"), [('{"input": 1}', "line 1"), ("\n[]", "line 2"), (None, "no file")]
)
def test_a_bad_example_file_is_named(text: str | None, reason: str) -> None:
    files = {} if text is None else {"prompts/examples.jsonl": text}
    result = episode(Scripted(), few_shot(), files=files)
    assert result.status == "harness_error"
    assert reason in result.reason


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ("head", "a" * 40 + " … [60 characters cut] … "),
        ("tail", " … [60 characters cut] … " + "b" * 40),
        ("middle", "a" * 20 + " … [60 characters cut] … " + "b" * 20),
    ],
)
def test_long_results_are_cut_where_it_is_said(keep: str, expected: str) -> None:
    host = Scripted([calls(("read", {"path": "a"})), "done"], ["a" * 50 + "b" * 50])
    cut = part("truncate_result:TruncateResult", "output_plumbing", max_chars=40, keep=keep)
    episode(host, cut)
    assert host.last(1) == expected


def test_only_results_of_the_named_tools_are_cut() -> None:
    host = Scripted([calls(("read", {"path": "a"})), "done"], ["a" * 100])
    cut = part("truncate_result:TruncateResult", "output_plumbing", max_chars=40, tools=["x"])
    episode(host, cut)
    assert host.last(1) == "a" * 100


@given(st.text(max_size=200), st.integers(1, 80), st.floats(0, 1))
def test_cutting_keeps_as_much_as_it_says(text: str, limit: int, tail: float) -> None:
    cut = head_and_tail(text, limit, tail)
    if len(text) <= limit:
        assert cut == text
    else:
        mark = f" … [{len(text) - limit} characters cut] … "
        assert len(cut) == limit + len(mark)
        head, _, rest = cut.partition(mark)
        assert text.startswith(head)
        assert text.endswith(rest)


def compaction(**params: object) -> object:
    return part("compaction:Compaction", "context_mgmt", max_chars=200, keep_turns=1, **params)


def test_compaction_puts_a_summary_in_the_place_of_the_middle() -> None:
    turn = calls(("read", {"path": "a"}))
    host = Scripted([turn] * 3 + ["done"], ["x" * 150] * 3, {"summariser": ["S1", "S2"]})
    assert episode(host, compaction(), steps=5).status == "completed"
    third, fourth = host.main[2].messages, host.main[3].messages
    assert third[0].content == "You are in a room.\n\nSummary of earlier steps:\nS1"
    assert [m.role for m in third] == ["user", "assistant", "tool"]
    assert fourth[0].content == "You are in a room.\n\nSummary of earlier steps:\nS2"
    asked = [request for request in host.asked if request.role == "summariser"]
    assert "S1" in asked[1].messages[1].content
    assert asked[0].max_tokens == 400


def test_extractive_compaction_asks_no_model() -> None:
    turn = calls(("read", {"path": "a"}))
    host = Scripted([turn] * 3 + ["done"], ["x" * 150] * 3)
    episode(host, compaction(mode="extract", line_chars=20), steps=5)
    assert host.main == host.asked
    assert host.main[2].messages[0].content == (
        "You are in a room.\n\nSummary of earlier steps:\n- tool: " + "x" * 20 + "…"
    )


def test_a_short_history_is_left_alone() -> None:
    host = Scripted([calls(("read", {"path": "a"})), "done"])
    episode(host, compaction())
    assert host.asked == host.main
    assert len(host.main[1].messages) == 3


def test_the_skill_that_fits_the_task_is_injected() -> None:
    host = Scripted(["done"])
    episode(host, part("skills:Skills", "skill", top_k=1), files=SKILLS)
    assert host.main[0].messages[0].content == "Skill: lamps\nLook on desks."


def test_skills_are_listed_and_read_on_demand() -> None:
    wanted = [calls(("read_skill", {"name": "cooking"}), ("read_skill", {"name": "cookin"}))]
    host = Scripted([*wanted, "done"])
    episode(host, part("skills:Skills", "skill", mode="listing"), files=SKILLS)
    assert host.called == []
    assert host.main[0].messages[0].content == (
        "Skills (read one with read_skill):\n- cooking: heat food\n- lamps: how to find a lamp"
    )
    assert [tool.name for tool in host.main[0].tools] == ["read", "read_skill"]
    answers = [m.content for m in host.main[1].messages if m.role == "tool"]
    assert answers == ["Use the microwave.", "there is no skill 'cookin'; did you mean 'cooking'?"]


def test_memory_files_are_found_and_notes_kept_and_recalled() -> None:
    files = {"memory/one.md": "Lamps stand on desks.", "memory/two.md": "Mugs are dirty."}
    turns = [
        calls(("note", {"text": "drawer 1 is  empty"}), ("note", {"text": " "})),
        calls(("recall", {"query": "drawers"}), ("recall", {"query": "zebra"})),
        "done",
    ]
    host = Scripted(turns)
    episode(host, part("episodic_memory:EpisodicMemory", "memory"), files=files)
    assert host.main[0].messages[0].content == "Memory: one\nLamps stand on desks."
    assert host.main[1].messages[-1].content.endswith("\nnote: drawer 1 is empty")
    said = [m.content for m in host.main[2].messages if m.role == "tool"]
    assert said[:3] == [
        "kept; 1 notes",
        "an empty note was not kept; give it a `text`",
        "- drawer 1 is empty",
    ]
    assert said[3].startswith("nothing found")


def test_memory_without_tools_offers_none() -> None:
    host = Scripted(["look"])
    memory = part("episodic_memory:EpisodicMemory", "memory", tools=False)
    episode(host, memory, task=TEXT, observation=ToolReply("a room"), steps=1)
    assert [tool.name for tool in host.main[0].tools] == ["act"]


def test_bm25_prefers_the_rarer_word_and_finds_plurals() -> None:
    documents = ["the mug", "the mug and the lamp", "the rug"]
    assert best("mugs", documents, 5) == [0, 1]
    assert best("lamp", documents, 5) == [1]
    assert best("zebra", documents, 5) == []
    assert scores("x", []) == []
    assert words("Glass mugs, a bus") == ["glass", "mug", "a", "bus"]
    # By hand: ln(1 + 2.5/1.5) · 2.5 / (1 + 1.5 · (0.25 + 0.75 · 2/3)).
    assert scores("rug", documents)[2] == pytest.approx(1.15392, abs=1e-5)


def test_a_page_without_a_head_takes_its_name_and_first_line() -> None:
    found = page("skills/a-b.md", b"# Title\n\ntext")
    assert (found.name, found.description, found.body) == ("a-b", "Title", "# Title\n\ntext")
    assert [p.name for p in pages({"skillsx/a.md": b"", "skills/b.md": b""}, "skills")] == ["b"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"---\nname: a\n", "no end"),
        (b"---\na: [\n---\nb", "no YAML"),
        (b"---\n- a\n---\nb", "a list, not a mapping"),
        (b"\xff", "byte 0"),
    ],
)
def test_a_broken_head_is_named(content: bytes, reason: str) -> None:
    with pytest.raises(FrontMatterError, match=reason):
        page("skills/a.md", content)


def test_the_task_of_the_bench_is_the_one_that_is_asked_for() -> None:
    assert CHAT.instruction == TEXT.instruction == "find the lamp"
