"""Arms and seeds of an experiment, and what its measurements are asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic_runs import make_run

from coevo.arms import parse_arms, parse_seeds
from coevo.compare import compare, load_run
from coevo.config import ConfigError, load_config
from coevo.errors import InputError
from coevo.experiment import write_experiment

SMOKE = Path(__file__).resolve().parents[3] / "configs" / "smoke.yaml"


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("3", [0, 1, 2]), ("1", [0]), ("0,2", [0, 2]), ("3,", [3]), ("0,", [0]), (" 7, 5 ", [7, 5])],
)
def test_a_bare_number_counts_seeds_and_a_comma_lists_them(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "-1", "1,1", "a", "1,-2", "1.5", ","])
def test_seeds_that_say_nothing_are_refused_with_both_forms(text):
    with pytest.raises(InputError, match=r"3 means 0, 1 and 2.*a single one is written 3,"):
        parse_seeds(text)


def test_an_unknown_arm_is_named_with_the_nearest():
    assert parse_arms("frozen, best_of_n") == ["frozen", "best_of_n"]
    with pytest.raises(InputError, match="'harnes' is none; did you mean 'harness'"):
        parse_arms("frozen,harnes")
    with pytest.raises(InputError, match="expected different ones of frozen, harness"):
        parse_arms("frozen,frozen")


def test_the_ends_of_a_run_may_measure_further_splits():
    evaluation = load_config(
        SMOKE, ["evaluation.ends={ood: 9}", "evaluation.episodes=4", "evaluation.final=6"]
    ).evaluation
    assert evaluation.sizes(False) == {"heldout": 4}
    assert evaluation.sizes(True) == {"heldout": 6, "ood": 9}
    with pytest.raises(ConfigError, match=r"evaluation\.ends names heldout"):
        load_config(SMOKE, ["evaluation.ends={heldout: 9}"])


def test_the_record_of_an_experiment_holds_each_budget_and_its_difference(tmp_path):
    paths = [make_run(tmp_path, arm, rounds=2) for arm in ("frozen", "harness")]
    for path, tokens in zip(paths, (800, 1500), strict=True):
        summary = json.loads((path / "summary.json").read_text())
        summary["tokens"] = {"prompt": tokens, "sampled": 0}
        summary["measured_tokens"] = {"prompt": 500, "sampled": 0}
        (path / "summary.json").write_text(json.dumps(summary))
    file = write_experiment(tmp_path, "it", compare([load_run(path) for path in paths]))
    found = json.loads(file.read_text())
    assert file.name == "it.experiment.json"
    assert found["baseline"] == "harness"
    assert [arm["budget"]["tokens"] for arm in found["arms"]] == [300, 1000]
    assert [arm["over"]["tokens"] for arm in found["arms"]] == [-0.7, 0.0]
    assert found["arms"][0]["runs"] == ["frozen-0"]
