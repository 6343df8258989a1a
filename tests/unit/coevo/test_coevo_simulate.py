"""The simulator: the loop's scheduler and phase order on a virtual clock."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from coevo import virtual_clock
from coevo.cli import main
from coevo.config import RunConfig, parse_config
from coevo.simulate import SimulationError, Speeds, simulate

QUICKSTART = "configs/quickstart.yaml"

ROUND = Speeds(
    tokens_per_s=100, train_tokens_per_s=800, sampled=100, prompt=100, spread=0,
    weight_bytes=1, publish_bytes_per_s=2, driver_s=0, buffer_bytes_per_s=1e15,
)  # fmt: skip
"""An episode takes a second in a slot of its own engine."""


def small(**changes: Any) -> RunConfig:
    data: dict[str, Any] = {
        "mode": "model",
        "rounds": 1,
        "harness": {"bundle": "harness/household"},
        "policy": {"model": "tiny"},
        "rollout": {"workers": 1, "concurrency": 1},
        "tasks": {"per_round": 2, "samples": 2},
        "buffer": {"window": 2, "trainer_logprobs": False},
        "trainer": {"steps_per_round": 1},
        "evaluation": {"episodes": 1},
    }
    return parse_config(data | changes)


def test_one_engine_measures_a_second_rolls_four_trains_one_and_publishes_one():
    found = simulate(small(), 1, ROUND)
    assert (found.rollout_s, found.train_s, found.publish_s) == pytest.approx((4, 1, 1))
    assert found.round_s == pytest.approx(7)
    assert found.engine_idle == pytest.approx(2 / 7)
    assert found.trainer_idle == pytest.approx(6 / 7)
    assert found.buffer_bytes == 13 * 4 * 200


def test_a_second_engine_halves_the_rollout_and_reads_the_weights_too():
    found = simulate(small(), 2, ROUND)
    assert (found.rollout_s, found.publish_s) == pytest.approx((2, 1.5))
    assert found.round_s == pytest.approx(1 + 2 + 1 + 1.5)


def test_a_broadcast_takes_as_long_for_any_number_of_engines():
    config = small(trainer={"steps_per_round": 1, "publish": "collective"})
    assert simulate(config, 64, ROUND).publish_s == pytest.approx(0.5)


def test_staleness_is_that_of_the_window():
    found = simulate(small(rounds=3), 1, ROUND)
    assert found.staleness_max == 1
    assert found.staleness_mean == pytest.approx((0 + 1 + 0 + 1 + 0) / 5)


def test_nothing_trains_before_the_window_is_long_enough():
    config = small(rounds=2, buffer={"window": 2, "min_rounds": 2, "trainer_logprobs": False})
    assert simulate(config, 1, ROUND).train_s == pytest.approx((0 + 2) / 2)


def test_a_pipelined_run_hides_training_behind_the_rollout_and_trains_on_older_episodes():
    whole = simulate(small(rounds=3), 1, ROUND)
    piped = simulate(small(rounds=3, schedule="pipelined"), 1, ROUND)
    # synchronous: measure 1 + rollout 4 + train 1 (2 on a full window) + publish 1.
    assert whole.round_s == pytest.approx((7 + 8 + 8) / 3)
    # pipelined: rollout 4 once, then measure 1 + rollout 4 beside training; the last rolls none out.
    assert piped.round_s == pytest.approx((4 + (5 + 1) + (5 + 1) + (2 + 1)) / 3)
    assert piped.staleness_mean == pytest.approx((0 + 1 + 1 + 1 + 2) / 5)
    assert piped.staleness_max == 2
    assert piped.engine_idle < whole.engine_idle


def test_a_round_larger_than_the_buffer_is_refused_as_the_run_would():
    config = small(buffer={"window": 2, "max_trajectories": 3, "trainer_logprobs": False})
    with pytest.raises(SimulationError, match=r"4 episodes.*max_trajectories 3"):
        simulate(config, 1, ROUND)
    half = small(rounds=2, buffer={"window": 2, "max_trajectories": 7, "trainer_logprobs": False})
    assert simulate(half, 1, ROUND).staleness_max == 0


def test_the_driver_queues_what_ends_at_once():
    slow = replace(ROUND, driver_s=1.0)
    found = simulate(small(mode="frozen"), 4, slow)
    # Four engines end an episode each after 1 s (held-out: one); the driver takes them in turn.
    assert found.rollout_s == pytest.approx(1 + 4)
    assert found.driver_busy == pytest.approx(5 / 7)


def test_the_driver_appends_what_was_rolled_out_before_the_round_goes_on():
    slow = replace(ROUND, buffer_bytes_per_s=13 * 4 * 200 / 2)  # two seconds for the round's tokens
    assert simulate(small(), 1, slow).rollout_s == pytest.approx(4 + 2)


def test_a_frozen_run_neither_trains_nor_publishes():
    found = simulate(small(mode="frozen"), 1, ROUND)
    assert (found.train_s, found.publish_s, found.trainer_idle) == (0, 0, 1)


def test_weak_scaling_gives_each_engine_what_one_had():
    one, eight = (simulate(small(), n, ROUND, weak=True) for n in (1, 8))
    assert eight.episodes == 8 * one.episodes
    assert (eight.rollout_s, eight.train_s) == pytest.approx((one.rollout_s, one.train_s))


def test_the_same_configuration_gives_the_same_forecast():
    speeds = Speeds(spread=0.5)
    assert simulate(small(), 4, speeds) == simulate(small(), 4, speeds)


def test_a_dead_lock_is_told():
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(virtual_clock.Stuck):
        virtual_clock.run(wait())


def test_the_command_forecasts_4096_engines(capsys):
    assert main(["simulate", QUICKSTART, "--engines", "1,4096", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [item["engines"] for item in found] == [1, 4096]
    assert found[1]["engine_idle"] > found[0]["engine_idle"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engines", "1,x"], "expected numbers above 0"),
        (["--engines", "0"], "expected numbers above 0"),
        (["--tokens-per-s", "0"], "tokens_per_s is 0.0"),
        (["--rounds", "0"], "--rounds is 0"),
    ],
)
def test_bad_speeds_and_sizes_are_one_message(options, said, capsys):
    assert main(["simulate", QUICKSTART, *options]) == 2
    assert said in capsys.readouterr().err
