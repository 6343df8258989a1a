"""Best of n: its budget, its pass@k, and how it stands beside the arms that evolve."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from synthetic_runs import make_run

from coevo.arms import another, arm_configs, learning_tokens, matched_run
from coevo.compare import compare, load_run
from coevo.config import ConfigError, load_config
from coevo.errors import InputError
from coevo.records import BestOfN, EpisodeResult, Evaluation, Measured, Summary, Tokens

ROOT = Path(__file__).resolve().parents[3]
SMOKE = ROOT / "configs" / "smoke.yaml"


def episode(task: str, seed: int, success: bool, outcome: str = "completed") -> EpisodeResult:
    return EpisodeResult(
        task_id=task, seed=seed, success=success, reward=success, steps=3, outcome=outcome
    )


def record(*episodes: EpisodeResult, n: int = 3, **more) -> BestOfN:
    fields = {"round": 4, "n": n, "harness_id": "h", "tokens": Tokens(prompt=900, sampled=100)}
    return BestOfN(**{**fields, **more}, episodes=episodes)


THREE = record(
    episode("a", 1, False), episode("b", 2, True), episode("c", 3, False),
    episode("a", 11, True), episode("b", 12, True), episode("c", 13, False, "infra_error"),
    episode("a", 21, False), episode("b", 22, True), episode("c", 23, False),
)  # fmt: skip


def test_pass_at_k_follows_the_formula_over_tasks_with_enough_runs():
    assert THREE.attempts() == {"a": (3, 1), "b": (3, 3), "c": (2, 0)}
    assert THREE.pass_at(1) == pytest.approx((1 / 3 + 1 + 0) / 3)
    assert THREE.pass_at(2) == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert THREE.pass_at(3) == 1.0  # c lost a run to infrastructure: it says nothing of three
    assert record(episode("a", 1, False, "infra_error"), n=1).pass_at(1) is None
    assert (THREE.single().n, THREE.single().successes) == (8, 4)


def test_the_best_run_of_a_task_stands_under_the_seed_that_other_arms_ran():
    best = THREE.best()
    assert [(e.task_id, e.seed, e.success) for e in best.episodes] == [
        ("a", 1, True),
        ("b", 2, True),
        ("c", 3, False),
    ]
    assert best.round == 4
    lost = record(episode("a", 1, False, "infra_error"), episode("a", 2, False), n=2)
    assert lost.best().result.n == 1  # one scored run is enough to say that none passed


@pytest.mark.parametrize(
    ("spent", "repeats", "budget", "more"),
    [
        (0, 0, 0, True),  # the first shows what a repeat costs
        (100, 1, 149, False),
        (100, 1, 150, True),  # 200 is as near to 150 as 100 is
        (400, 4, 449, False),
        (400, 4, 451, True),
    ],
)
def test_repeats_are_added_while_they_bring_the_budget_nearer(spent, repeats, budget, more):
    assert another(spent, repeats, budget) is more


def _journal(run: Path, *entries: tuple[str, list[int]]) -> None:
    lines = [
        json.dumps({"schema": 1, "key": key, "inputs": "x", "result": {"tokens": tokens}})
        for key, tokens in entries
    ]
    (run / "journal.jsonl").write_text("\n".join(lines) + "\n")


def test_the_budget_is_what_rollouts_and_evolution_took(tmp_path):
    run = make_run(tmp_path, "harness", rounds=2)
    _journal(
        run,
        ("0/measure", [1000, 10]),
        ("0/rollout", [500, 5]),
        ("0/evolve", [2000, 20]),
        ("1/rollout", [300, 3]),
    )
    assert learning_tokens(run) == 2828
    metrics = run / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines[0]["evolution"]["llm"] = {"calls": 1, "prompt_tokens": 100, "completion_tokens": 10}
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert learning_tokens(run) == 2938
    (run / "summary.json").unlink()
    with pytest.raises(InputError, match=r"no finished run .* or set best_of_n\.n"):
        learning_tokens(run)


def _best_of_n_run(root: Path, record: BestOfN, first: Evaluation, seed: int = 0) -> Path:
    """A finished run of the arm, in the environment of `make_run`."""
    path = root / f"best_of_n-{seed}"
    (path / "heldout").mkdir(parents=True)
    frozen = yaml.safe_load((root / f"frozen-{seed}" / "config.yaml").read_text())
    (path / "config.yaml").write_text(
        yaml.safe_dump({**frozen, "mode": "best_of_n", "name": path.name})
    )
    (path / "metrics.jsonl").write_text("")
    (path / "heldout" / "0000.json").write_text(json.dumps(first.to_json()))
    (path / "best_of_n.json").write_text(json.dumps(record.to_json()))
    summary = Summary(
        name=path.name,
        arm="best_of_n",
        mode="best_of_n",
        seed=seed,
        rounds=0,
        final=Measured(heldout=record.best().result),
        initial=Measured(heldout=first.result),
        wall_s=1.0,
        tokens=record.tokens,
    )
    (path / "summary.json").write_text(json.dumps(summary.to_json()))
    return path


def test_the_comparison_shows_it_as_an_arm_paired_task_by_task(tmp_path):
    runs = [make_run(tmp_path, arm, tasks=30, repeats=1, rounds=2) for arm in ("frozen", "harness")]
    first = load_run(runs[0]).evaluations[0].model_copy(update={"round": 0})
    first = first.model_copy(
        update={
            "episodes": tuple(
                e.model_copy(update={"success": i < 6}) for i, e in enumerate(first.episodes)
            )
        }
    )
    again = tuple(
        e.model_copy(update={"seed": 100 + e.seed, "success": i % 2 == 0})
        for i, e in enumerate(first.episodes)
    )
    found = record(*first.episodes, *again, n=2, round=1, matched="harness-0", budget=800)
    runs.append(_best_of_n_run(tmp_path, found, first))
    comparison = compare([load_run(run) for run in runs])
    assert [arm.label for arm in comparison.arms] == ["Frozen", "Harness only", "Best of n"]
    arm = comparison.arms[2]
    assert arm.initial is not None
    assert arm.final is not None
    assert (arm.initial.successes, arm.final.successes, arm.final.n) == (6, 18, 30)
    pair = comparison.difference("best_of_n", "harness")
    assert pair is not None
    assert pair.interval.n_tasks == 30
    (note,) = [n for n in comparison.notes if n.startswith("best_of_n-0")]
    assert "ran each held-out task 2 times and let the verifier choose: an upper bound" in note
    assert "A single run 35.0%" in note
    assert "pass@1 35.0%, pass@2 60.0%" in note
    assert "took 1,000 tokens; harness-0 spent 800" in note
    assert "a difference of +200 (+25.0%)" in note


def test_a_damaged_record_is_named_and_the_run_still_read(tmp_path):
    make_run(tmp_path, "frozen", tasks=30, repeats=1, rounds=2)
    first = load_run(tmp_path / "frozen-0").evaluations[0]
    path = _best_of_n_run(tmp_path, record(*first.episodes, n=1, round=1), first)
    (path / "best_of_n.json").write_text('{"n": 2}')
    run = load_run(path)
    assert run.best_of_n is None
    assert list(run.evaluations) == [0]
    assert any("best_of_n.json" in problem for problem in run.problems)


# --- configuration ---


def test_an_experiment_matches_the_arm_that_evolves_and_runs_best_of_n_last():
    configs = arm_configs(SMOKE, [], ["best_of_n", "frozen", "harness", "coevolve"], ["0", "3"])
    assert [(c.mode, c.seed) for c in configs] == [
        (mode, seed) for seed in (0, 3) for mode in ("frozen", "harness", "coevolve", "best_of_n")
    ]
    assert configs[3].best_of_n.match == "smoke-harness-s0"
    assert configs[7].best_of_n.match == "smoke-harness-s3"
    (alone,) = arm_configs(SMOKE, ["best_of_n.n=4"], ["best_of_n"], ["0"])
    assert (alone.best_of_n.n, alone.best_of_n.match) == (4, None)
    with pytest.raises(InputError, match="add harness or coevolve, or set best_of_n"):
        arm_configs(SMOKE, [], ["frozen", "best_of_n"], ["0"])


def test_the_budget_is_given_once():
    with pytest.raises(ConfigError, match=r"exactly one of best_of_n\.n"):
        load_config(SMOKE, ["mode=best_of_n"])
    with pytest.raises(ConfigError, match="found both"):
        load_config(SMOKE, ["mode=best_of_n", "best_of_n.n=2", "best_of_n.match=x"])
    with pytest.raises(ConfigError, match="no 'heldout'"):
        load_config(SMOKE, ["mode=best_of_n", "best_of_n.n=2", "evaluation.splits=[ood]"])


def test_the_matched_run_is_one_beside_this_one_or_a_directory(tmp_path):
    def config(match: str):
        more = ["mode=best_of_n", f"best_of_n.match={match}", f"runs_dir={tmp_path}"]
        return load_config(SMOKE, more)

    (tmp_path / "sibling").mkdir()
    assert matched_run(config("sibling")) == tmp_path / "sibling"
    assert matched_run(config("/elsewhere/run")) == Path("/elsewhere/run")
    assert matched_run(load_config(SMOKE)) is None
