"""Arms and seeds of an experiment, and what its measurements are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from coevo.arms import parse_arms, parse_seeds
from coevo.config import ConfigError, load_config
from coevo.errors import InputError

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
