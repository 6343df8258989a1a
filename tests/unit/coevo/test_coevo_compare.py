"""Reading runs back and comparing them: what is paired, what is refused, what is said."""

from __future__ import annotations

import io
import json

import pytest
import yaml
from rich.console import Console
from synthetic_runs import make_run

from coevo.compare import NotComparableError, RunError, compare, load_run
from coevo.compare_view import per_point, print_comparison, spark
from coevo.records import Evaluation, RepeatResult, SplitResult
from coevo.report.verdict import verdict


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return [make_run(root, arm) for arm in ("coevolve", "frozen", "harness")]


def _rewrite(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def _solve_exactly(run, counts):
    """Set the last evaluation of a run: `counts[i]` repeats of task i solved."""
    last = sorted((run / "heldout").glob("*.json"))[-1]

    def change(data):
        for i, episode in enumerate(data["episodes"]):
            task, repeat = divmod(i, 2)
            episode["success"] = repeat < counts[task]

    _rewrite(last, change)


def test_a_run_reads_back_whole(runs):
    run = load_run(runs[0])
    assert (run.name, run.arm, run.mode, run.seed, run.finished) == (
        "coevolve-0",
        "coevolve",
        "coevolve",
        0,
        True,
    )
    assert len(run.rounds) == len(run.evaluations) == 6
    assert run.problems == ()
    assert run.last is not None
    assert run.last.result == run.rounds[-1].heldout


def test_arms_stand_in_the_order_of_the_method_whatever_order_is_given(runs):
    found = compare([load_run(run) for run in runs])
    assert [arm.key for arm in found.arms] == ["frozen", "harness", "coevolve"]
    assert found.reference == "frozen"
    assert [(p.a, p.b) for p in found.pairs] == [
        ("harness", "frozen"),
        ("coevolve", "frozen"),
        ("coevolve", "harness"),
    ]
    other = compare([load_run(run) for run in runs], reference="harness")
    assert [(p.a, p.b) for p in other.pairs] == [
        ("frozen", "harness"),
        ("coevolve", "harness"),
        ("coevolve", "frozen"),
    ]


def test_the_difference_is_paired_by_task_and_seed(tmp_path):
    a = make_run(tmp_path, "frozen", tasks=20, repeats=2, rounds=1)
    b = make_run(tmp_path, "harness", tasks=20, repeats=2, rounds=1)
    _solve_exactly(a, [1] * 20)
    _solve_exactly(b, [1] * 8 + [2] * 10 + [0] * 2)
    pair = compare([load_run(a), load_run(b)]).difference("harness", "frozen")
    assert pair is not None
    assert pair.interval.mean == pytest.approx(8 / 40)
    assert (pair.only_a, pair.only_b) == (10, 2)
    assert pair.p_mcnemar == pytest.approx(0.03857421875)  # 2·P(Binomial(12, ½) ≤ 2)
    assert (pair.interval.n_tasks, pair.interval.n_pairs) == (20, 40)


def test_infrastructure_errors_leave_their_pair_and_are_counted(tmp_path):
    a, b = (make_run(tmp_path, arm, rounds=1) for arm in ("frozen", "harness"))
    _rewrite(
        a / "heldout" / "0000.json",
        lambda data: [e.update(outcome="infra_error") for e in data["episodes"][:3]],
    )
    found = compare([load_run(a), load_run(b)])
    assert found.pairs[0].dropped == 3
    assert found.pairs[0].interval.n_pairs == 197
    assert any("3 pairs were left out" in note for note in found.notes)


def test_best_round_and_gain_are_of_the_run_itself(runs):
    arm = compare([load_run(runs[0])]).arms[0]
    curve = {r: e.result.success for r, e in load_run(runs[0]).evaluations.items()}
    assert arm.best_round == max(curve, key=curve.__getitem__)
    assert arm.gain is not None
    assert arm.gain.interval.mean == pytest.approx(curve[5] - curve[0])


def test_seeds_of_an_arm_are_pooled_and_paired_seed_by_seed(tmp_path):
    runs = [make_run(tmp_path, arm, seed=s) for arm in ("harness", "coevolve") for s in range(3)]
    found = compare([load_run(run) for run in runs])
    assert [len(arm.runs) for arm in found.arms] == [3, 3]
    assert found.arms[0].final is not None
    assert found.arms[0].final.n == 600
    assert (found.pairs[0].interval.n_tasks, found.pairs[0].interval.n_pairs) == (50, 600)
    with pytest.raises(NotComparableError, match=r"run seeds are 0, 1, 2 and 0, 1;"):
        compare([load_run(run) for run in runs[:5]])


def test_several_seeds_widen_the_interval_and_are_shown_one_by_one(tmp_path):
    runs = [
        load_run(make_run(tmp_path, arm, seed=s, rounds=2))
        for arm in ("frozen", "harness")
        for s in (0, 1, 2)
    ]
    both = compare(runs).difference("harness", "frozen")
    assert both is not None
    assert both.interval.n_seeds == 3
    assert [seed for seed, _ in both.by_seed] == [0, 1, 2]
    assert sum(mean for _, mean in both.by_seed) / 3 == pytest.approx(both.interval.mean)
    one = compare([runs[0], runs[3]]).difference("harness", "frozen")
    assert one is not None
    assert one.interval.n_seeds == 1
    assert one.by_seed[0][1] == pytest.approx(both.by_seed[0][1])
    assert any("both resampled" in note for note in compare(runs).notes)
    assert any("One run an arm: the intervals cover" in note for note in compare(runs[:1]).notes)


def test_runs_of_one_arm_under_two_settings_make_two_groups_named_by_the_key(tmp_path):
    runs = []
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            path = make_run(tmp_path, "model", seed=seed, rounds=1, name=f"lr{lr}-{seed}")
            config = yaml.safe_load((path / "config.yaml").read_text())
            config["trainer"]["lr"] = lr
            config["resources"] = {"num_cpus": 8 + seed}  # where a run is computed is no setting
            (path / "config.yaml").write_text(yaml.safe_dump(config))
            runs.append(load_run(path))
    found = compare(runs)
    assert [arm.label for arm in found.arms] == [
        "Model only (trainer.lr=0.1)",
        "Model only (trainer.lr=0.2)",
    ]
    assert [arm.seeds for arm in found.arms] == [(0, 1), (0, 1)]
    assert found.pairs[0].interval.n_seeds == 2


def test_repeats_of_a_task_give_pass_k_and_flips(tmp_path):
    run = make_run(tmp_path, "frozen", tasks=20, repeats=2, rounds=1)
    _solve_exactly(run, [2] * 8 + [1] * 4 + [0] * 8)
    found = compare([load_run(run)])
    assert found.arms[0].repeats[1] == RepeatResult(
        k=2, tasks=20, pass_at_1=0.5, pass_at_k=0.6, pass_hat_k=0.4, flips=0.2
    )
    # Runs of a task mostly agree, so that 40 of them say less than 40 tasks would.
    final = found.arms[0].final
    assert final is not None
    assert final.hi - final.lo > SplitResult.of(20, 40).hi - SplitResult.of(20, 40).lo
    once = make_run(tmp_path, "harness", tasks=20, repeats=1, rounds=1)
    assert any("ran once: pass@k" in note for note in compare([load_run(once)]).notes)


def test_further_splits_are_compared_with_their_own_start(tmp_path):
    run = make_run(tmp_path, "coevolve", rounds=3)
    (run / "ood").mkdir()
    for name in ("0000.json", "0002.json"):
        (run / "ood" / name).write_text((run / "heldout" / name).read_text())
    (run / "ood" / "0001.json").write_text("{")
    loaded = load_run(run)
    assert sorted(loaded.others["ood"]) == [0, 2]
    assert any("ood/0001.json" in problem for problem in loaded.problems)
    arm = compare([loaded]).arms[0]
    evolve, ood = arm.others
    assert (evolve.split, evolve.gain, evolve.final_round) == ("evolve", None, 2)
    assert ood.gain is not None
    assert arm.gain is not None
    assert (ood.final, ood.gain.interval) == (arm.final, arm.gain.interval)


def test_a_point_costs_what_the_run_spent_over_what_it_gained(tmp_path):
    run = make_run(tmp_path, "coevolve", rounds=2, tasks=20, repeats=2)
    _rewrite(
        run / "summary.json",
        lambda data: data.update(
            tokens={"prompt": 900, "sampled": 600}, measured_tokens={"prompt": 400, "sampled": 100}
        ),
    )
    first = run / "heldout" / "0000.json"
    _rewrite(first, lambda data: [e.update(success=False) for e in data["episodes"]])
    _solve_exactly(run, [1] * 20)
    found = compare([load_run(run)])
    assert found.arms[0].budget.tokens == 1000
    assert found.arms[0].budget.measured_tokens == 500
    assert per_point(1000, found.arms[0].gain) == pytest.approx(1000 / 50)
    assert per_point(1000, None) is None
    older = make_run(tmp_path, "frozen", rounds=1)
    assert compare([load_run(older)]).arms[0].budget.tokens is None


def test_two_runs_of_one_arm_and_seed_are_told_apart_by_name(tmp_path):
    a = make_run(tmp_path, "coevolve", name="lr-3e-4")
    b = make_run(tmp_path, "coevolve", name="lr-1e-4", final=0.5)
    assert [arm.label for arm in compare([load_run(a), load_run(b)]).arms] == ["lr-3e-4", "lr-1e-4"]


def test_runs_on_other_episodes_are_refused_with_the_difference(tmp_path):
    a = make_run(tmp_path, "frozen", rounds=1)
    b = make_run(tmp_path, "harness", rounds=1)

    def renamed(data):
        data["episodes"][0]["task_id"] = "task-zzz"

    _rewrite(b / "heldout" / "0000.json", renamed)
    with pytest.raises(
        NotComparableError, match=r"1 are in the first alone, such as task task-000 with"
    ):
        compare([load_run(a), load_run(b)])


def test_a_part_of_the_episodes_is_paired_and_said(tmp_path):
    a = make_run(tmp_path, "frozen", rounds=1)
    b = make_run(tmp_path, "harness", rounds=1, finished=False)
    _rewrite(
        b / "heldout" / "0000.json", lambda data: data["episodes"].__delitem__(slice(60, None))
    )
    found = compare([load_run(a), load_run(b)])
    assert found.pairs[0].interval.n_pairs == 60
    assert any("hold 60 to 200 episodes" in note for note in found.notes)


def test_other_keys_in_which_the_configs_differ_are_noted(runs):
    notes = compare([load_run(run) for run in runs]).notes
    assert any("differ in: trainer.lr." in note for note in notes)


def test_runs_of_other_environments_or_splits_are_refused_with_the_key(tmp_path):
    a = make_run(tmp_path, "frozen", rounds=1)
    b = make_run(tmp_path, "harness", rounds=1, split_seed=8)
    with pytest.raises(
        NotComparableError, match=r"environment.options.seed is 7 in the first and 8 in"
    ):
        compare([load_run(a), load_run(b)])


def test_a_run_still_going_is_shown_as_far_as_it_goes(tmp_path):
    run = make_run(tmp_path, "coevolve", rounds=3, finished=False)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"schema"')
    loaded = load_run(run)
    assert not loaded.finished
    assert (loaded.arm, loaded.seed) == ("coevolve", 0)
    found = compare([loaded])
    assert any("Not finished" in note for note in found.notes)
    assert any("torn last line" in note for note in found.notes)
    assert loaded.tokens.total == sum(r.tokens.total for r in loaded.rounds)


def test_a_run_without_rounds_loads_and_compares_as_not_evaluated(tmp_path):
    run = make_run(tmp_path, "frozen", rounds=1, finished=False)
    (run / "metrics.jsonl").unlink()
    (run / "heldout" / "0000.json").unlink()
    found = compare([load_run(run)])
    assert found.arms[0].final is None
    assert verdict(found).headline == "No held-out result yet."


def test_damaged_files_are_named_and_the_rest_is_kept(tmp_path):
    run = make_run(tmp_path, "harness", rounds=3)
    (run / "heldout" / "0001.json").write_text("{")
    (run / "lock.json").write_text("not json")
    (run / "summary.json").write_text('{"schema": 9}')
    loaded = load_run(run)
    assert sorted(loaded.evaluations) == [0, 2]
    assert len(loaded.problems) == 3
    for name in ("0001.json", "lock.json", "summary.json"):
        assert any(name in problem for problem in loaded.problems)


def test_an_episode_twice_in_an_evaluation_is_a_named_problem(tmp_path):
    run = make_run(tmp_path, "frozen", rounds=1)
    _rewrite(
        run / "heldout" / "0000.json", lambda data: data["episodes"].append(data["episodes"][0])
    )
    assert "task task-000 with seed 0 stands there twice" in load_run(run).problems[0]


def test_a_missing_run_is_named_with_the_nearest(tmp_path):
    make_run(tmp_path, "frozen", rounds=1)
    with pytest.raises(RunError, match=r"Did you mean .*frozen-0\?"):
        load_run(tmp_path / "frozen0")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="is not a run directory"):
        load_run(tmp_path / "empty")


def test_an_unknown_reference_and_no_runs_are_refused(runs):
    with pytest.raises(ValueError, match="reference is 'nope'; expected one of frozen"):
        compare([load_run(runs[1])], reference="nope")
    with pytest.raises(ValueError, match="no runs to compare"):
        compare([])


def test_the_printed_comparison_fits_eighty_columns(runs):
    out = io.StringIO()
    print_comparison(compare([load_run(run) for run in runs]), Console(file=out, width=80))
    text = out.getvalue()
    assert "…" not in text
    assert "Co-evolution − Harness only" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_learning_curve_is_a_line_of_bars_thinned_where_it_is_long():
    assert spark([0.0, 0.1, None, 0.2], 0.2) == "▁▅·█"
    assert spark([0.0, 0.0], 0.0) == "▁▁"
    assert spark([i / 99 for i in range(100)], 1.0) == "▁▁▂▂▃▃▄▄▅▅▆▆▇▇██"


@pytest.mark.parametrize(
    ("harness", "headline"),
    [
        ([2] * 20, "Harness only ends above frozen."),
        ([0] * 20, "Frozen ends above harness only."),
        ([1] * 18 + [2, 0], "Frozen is within noise of harness only."),
        ([1] * 19 + [2], "Harness only is within noise of frozen."),
    ],
)
def test_the_verdict_claims_only_what_the_interval_allows(tmp_path, harness, headline):
    a = make_run(tmp_path, "frozen", tasks=20, repeats=2, rounds=1)
    b = make_run(tmp_path, "harness", tasks=20, repeats=2, rounds=1)
    _solve_exactly(a, [1] * 20)
    _solve_exactly(b, harness)
    words = verdict(compare([load_run(a), load_run(b)]))
    assert words.headline == headline
    assert ("the interval includes 0" in words.paragraph) == ("noise" in headline)


def test_few_tasks_conclude_nothing_however_clear_they_look(tmp_path):
    a = make_run(tmp_path, "frozen", tasks=5, repeats=2, rounds=1)
    b = make_run(tmp_path, "coevolve", tasks=5, repeats=2, rounds=1)
    _solve_exactly(a, [0] * 5)
    _solve_exactly(b, [2] * 5)
    words = verdict(compare([load_run(a), load_run(b)]))
    assert words.headline == "Too few tasks to tell Co-evolution from frozen."
    assert "which fewer than 20 tasks cannot decide" in words.paragraph


def test_co_evolution_that_ends_lower_is_said_to(tmp_path):
    a = make_run(tmp_path, "frozen", tasks=20, repeats=2, rounds=1)
    b = make_run(tmp_path, "coevolve", tasks=20, repeats=2, rounds=1)
    _solve_exactly(a, [2] * 20)
    _solve_exactly(b, [0] * 10 + [2] * 10)
    assert (
        verdict(compare([load_run(a), load_run(b)])).headline == "Co-evolution ends below frozen."
    )


def test_one_arm_is_compared_with_its_start_and_claims_no_cause(tmp_path):
    run = make_run(tmp_path, "coevolve", final=0.9)
    words = verdict(compare([load_run(run)]))
    assert words.headline == "Co-evolution ends above its start."
    assert "says nothing about what caused it" in words.paragraph


def test_evaluations_are_the_type_that_the_loop_writes(runs):
    assert all(isinstance(e, Evaluation) for e in load_run(runs[0]).evaluations.values())
