"""`coevo evolve show`: on whole, going and damaged runs, made by the real engine over a small world."""

from __future__ import annotations

import json
import shutil

import pytest
from evolve_world import H0
from evolved_runs import evolve_run
from synthetic_runs import round_record

from coevo import cli
from coevo.errors import InputError
from coevo.evolution_read import read_evolution
from coevo.metrics import MetricsLog
from coevo.records import EvolutionRecord, LLMRecord
from harness.evolve.drift import DriftEvidence, DriftTest, drift_test
from harness.evolve.records import PairedResult, PairedTask, encode


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return evolve_run(tmp_path_factory.mktemp("runs") / "toy")


@pytest.fixture
def run(template, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(template, tmp_path / "toy")


def shown(capsys, *arguments) -> tuple[str, str, int]:
    code = cli.main(["evolve", "show", *map(str, arguments)])
    out = capsys.readouterr()
    return " ".join(out.out.split()), out.err, code


def test_a_run_shows_why_each_candidate_was_accepted_or_rejected(run, capsys):
    text, errors, code = shown(capsys, run)
    assert (code, errors) == (0, "")
    assert "toy: mode harness, seed 0, recipe quickstart" in text
    assert "Round 0: applied (C-R0-01: mean gain +" in text
    assert "add goal_filter (control_flow, harness.processors.goal_filter:GoalFilter)" in text
    assert "24 tasks × 2 pairs" in text
    assert "Landed: component 'goal_filter' fired" in text
    assert " smoke, " in text
    assert " select, 96 confirm), " in text
    assert "Round 1: " in text
    assert "Edits shipped: control_flow 100% (concentration 1.00; 1 is a single kind)" in text


def test_the_tasks_came_again_so_the_edit_is_followed_into_the_next_round(run):
    entry = read_evolution(run).ledger.entries[0]
    assert entry.candidate.shipped
    assert entry.later is not None
    assert len(entry.later.outcomes.tasks) == 24
    assert len(entry.later.hits) > 12


def test_one_round_alone(run, capsys):
    text, _, _ = shown(capsys, run, 1)
    assert "Round 1: " in text
    assert "Round 0: " not in text


def test_json_holds_the_same_with_all_task_keys(run, capsys):
    assert cli.main(["evolve", "show", str(run), "0", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [item["round"] for item in data["rounds"]] == [0]
    first = data["rounds"][0]["candidates"][0]
    assert first["verdict"]["decision"] == "apply"
    assert len(first["confirm"]["tasks"]) == 24
    entry = data["ledger"]["entries"][0]
    assert len(entry["gate"]["hits"]) == round(
        entry["gate"]["hit_rate"] * entry["gate"]["predicted"]
    )
    verdicts = json.loads((run / "evolution" / "0000" / "verdicts.json").read_text())
    spent = data["rounds"][0]["spent"]
    assert sum(spent["rollouts"].values()) == verdicts["rollouts"]
    assert spent["tokens"]["confirm"] == 96 * 1000
    assert data["problems"] == []


def test_an_unknown_round_names_those_that_there_are(run, capsys):
    with pytest.raises(InputError, match=r"has no round 7; it has 0, 1$"):
        read_evolution(run).round(7)
    _, errors, code = shown(capsys, run, 7)
    assert code == 2
    assert "it has 0, 1" in errors


def test_a_round_that_is_going_shows_what_it_has_done(run, capsys):
    (run / "evolution" / "0001" / "verdicts.json").unlink()
    metrics = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(metrics.splitlines(keepends=True)[0])
    journal = run / "evolution" / "0001" / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:4]) + b'{"tor')
    before = journal.read_bytes()
    text, errors, code = shown(capsys, run)
    assert (code, errors) == (0, "")
    assert "Round 1: undecided (no verdicts yet: the round is going, or was interrupted)" in text
    assert "done so far digest, plan, propose, " in text
    assert journal.read_bytes() == before


def test_what_language_models_took_is_shown_and_summed(run, capsys):
    llm = LLMRecord(calls=7, prompt_tokens=9000, completion_tokens=800, money=0.25)
    with MetricsLog(run / "metrics.jsonl") as log:
        for number in (2, 3):
            evolution = EvolutionRecord(outcome="no_op", reason="unreadable answers", llm=llm)
            log.append(round_record(number, evolution=evolution))
    text, _, _ = shown(capsys, run, 2)
    assert "language models: 7 calls, 9,800 tokens, money 0.25" in text
    assert "language models: 14 calls, 19,600 tokens, money 0.5" in text


def test_a_drift_test_is_shown_with_its_numbers(run, capsys):
    file = run / "evolution" / "0001" / "verdicts.json"
    data = json.loads(file.read_text())
    stable = PairedResult("drift", tuple(PairedTask(f"t{i}", 0.5, 1.0, 4) for i in range(6)))
    report = drift_test("main", H0.id, "f" * 64, DriftEvidence(), stable, DriftTest())
    file.write_text(json.dumps({**data, "drift": [encode(report)]}))
    text, errors, _ = shown(capsys, run, 1)
    assert errors == ""
    assert (
        f"drift main ffffffff against the best, {H0.id[:8]}: roll_back, -0.500 on 6 stable" in text
    )


def test_a_round_without_evolution_says_so(run, capsys):
    record = round_record(2, evolution=EvolutionRecord(outcome="off", reason="not this round"))
    with MetricsLog(run / "metrics.jsonl") as log:
        log.append(record)
    text, _, _ = shown(capsys, run, 2)
    assert "Round 2: off (not this round)" in text


@pytest.mark.parametrize("damage", ["{", '{"outcome": "applied"}', "[]", '{"schema": 9}'])
def test_damaged_verdicts_are_named_and_the_round_is_told_from_its_metrics(run, capsys, damage):
    file = run / "evolution" / "0000" / "verdicts.json"
    file.write_text(damage)
    text, errors, code = shown(capsys, run)
    assert code == 0
    assert f"problem: {file}" in errors
    assert "Round 0: applied (C-R0-01: mean gain" in text
    assert "C-R0-01 apply: mean gain" in text
    assert "Round 1: " in text


def test_damaged_journals_and_bundles_are_named_and_the_rest_is_shown(run, capsys):
    (run / "journal.jsonl").write_text("not json\n")
    (run / "evolution" / "0000" / "journal.jsonl").write_text('{"schema": 2}\n')
    child = read_evolution(run).rounds[0].candidates[0].judged.harness_id
    bundle = run / "harness" / "objects" / child / "harness.yaml"
    bundle.chmod(0o644)
    bundle.write_text("components: [")
    text, errors, code = shown(capsys, run)
    assert code == 0
    for file in ("journal.jsonl line 1", "0000/journal.jsonl line 1", child):
        assert file in errors
    # The edits themselves stand in the verdicts.
    assert "add goal_filter (control_flow" in text


def test_no_run_is_bad_input(tmp_path, capsys):
    _, errors, code = shown(capsys, tmp_path / "nothing")
    assert code == 2
    assert "there is no such run directory" in errors
