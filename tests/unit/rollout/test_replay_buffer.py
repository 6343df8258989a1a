"""The replay buffer: durable, exactly once, first in first out by whole rounds."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.buffer import CorruptPartError, ReplayBuffer, ReplayError
from rollout.trajectory import Cost, Outcome, Segment, Trajectory

TOKEN_NAMES = ("token_ids", "loss_mask", "logprobs", "versions")


def segment(rng: np.random.Generator, version: int) -> Segment:
    n = int(rng.integers(2, 9))
    mask = rng.random(n) < 0.5
    mask[0], mask[-1] = False, True
    return Segment(
        token_ids=rng.integers(0, 500, n).astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -rng.random(n), 0).astype(np.float32),
        versions=np.where(mask, version, -1).astype(np.int32),
        temperature=1.0,
    )


def trajectory(round: int, number: int, **changes: Any) -> Trajectory:
    rng = np.random.default_rng(1000 * round + number)
    made = Trajectory(
        id=f"r{round}-{number}",
        task_id=f"task-{number % 3}",
        round=round,
        role="incumbent",
        harness_id=f"h{round % 2}",
        policy_version=round,
        seed=(1 << 62) + number,
        outcome=Outcome("completed", "done"),
        reward=float(rng.random()),
        success=bool(number % 2),
        steps=number,
        segments=tuple(segment(rng, round) for _ in range(int(rng.integers(0, 4)))),
        cost=Cost(10, 5, 2, 0.25),
        detail={"sub_goals": [True, None, 0.5]},
        features={"room": "kitchen"},
        trace_ref="traces/x.json",
    )
    return dataclasses.replace(made, **changes)


def fill(root: Path, rounds: int, each: int = 4, window: int = 4, most: int = 1000) -> ReplayBuffer:
    buffer = ReplayBuffer(root, window, most)
    for number in range(rounds):
        buffer.append(number, "incumbent", [trajectory(number, i) for i in range(each)])
    return buffer


def assert_same(left: Trajectory, right: Trajectory) -> None:
    assert dataclasses.replace(left, segments=()) == dataclasses.replace(right, segments=())
    assert len(left.segments) == len(right.segments)
    for a, b in zip(left.segments, right.segments, strict=True):
        for name in TOKEN_NAMES:
            x, y = getattr(a, name), getattr(b, name)
            assert x.dtype == y.dtype
            assert x.tobytes() == y.tobytes()
        assert a.temperature == b.temperature


def test_trajectories_come_back_bit_equal_and_in_order_after_reload(tmp_path: Path) -> None:
    written = [trajectory(0, i) for i in range(7)]
    more = [trajectory(0, i, role="candidate") for i in range(10, 13)]
    buffer = ReplayBuffer(tmp_path, 4, 100)
    buffer.append(0, "incumbent", written)
    buffer.append(0, "candidate-01", more)
    again = ReplayBuffer(tmp_path, 4, 100)
    assert again.parts(0) == ["incumbent", "candidate-01"]
    for left, right in zip([*written, *more], again.trajectories(0, tokens=True), strict=True):
        assert_same(left, right)


def test_records_are_read_without_their_tokens(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    (tmp_path / "rounds/0000/incumbent/segments.safetensors").unlink()
    buffer = ReplayBuffer(tmp_path, 4, 100)
    assert [t.id for t in buffer.trajectories(0)] == [f"r0-{i}" for i in range(4)]
    assert buffer.stats(0, 0).trajectories == 4
    with pytest.raises(CorruptPartError, match=r"segments\.safetensors is missing"):
        buffer.select(0)


def test_a_view_is_the_flat_form_of_the_window(tmp_path: Path) -> None:
    buffer = fill(tmp_path, 3)
    view = buffer.select(2, policy_version=2)
    all_of_them = [t for r in range(3) for t in buffer.trajectories(r, tokens=True)]
    assert view.ids.tolist() == [t.id for t in all_of_them]
    assert view.groups.tolist() == [t.task_id for t in all_of_them]
    assert view.rewards.tolist() == [t.reward for t in all_of_them]
    assert view.policy_versions.tolist() == [t.policy_version for t in all_of_them]
    segments = [(row, s) for row, t in enumerate(all_of_them) for s in t.segments]
    assert view.trajectory.tolist() == [row for row, _ in segments]
    for number, (_, s) in enumerate(segments):
        cut = slice(view.offsets[number], view.offsets[number + 1])
        for name in TOKEN_NAMES:
            assert getattr(view, name)[cut].tobytes() == getattr(s, name).tobytes()


def test_only_the_asked_roles_are_in_a_view(tmp_path: Path) -> None:
    buffer = ReplayBuffer(tmp_path, 4, 100)
    mixed = [trajectory(0, i, role=("incumbent", "candidate")[i % 2]) for i in range(8)]
    buffer.append(0, "both", mixed)
    view = buffer.select(0, include_roles=["candidate"])
    chosen = [t for t in mixed if t.role == "candidate"]
    assert view.ids.tolist() == [t.id for t in chosen]
    assert view.token_ids.tolist() == [
        int(i) for t in chosen for s in t.segments for i in s.token_ids
    ]
    assert view.offsets[-1] == len(view.token_ids)


def test_a_part_is_appended_exactly_once(tmp_path: Path) -> None:
    items = [trajectory(0, i) for i in range(4)]
    assert ReplayBuffer(tmp_path, 4, 100).append(0, "incumbent", items)
    again = ReplayBuffer(tmp_path, 4, 100)
    assert not again.append(0, "incumbent", items)
    assert again.select(0).trajectories == 4
    with pytest.raises(ReplayError, match="written before with 4 other trajectories"):
        again.append(0, "incumbent", items[:3])


def test_infrastructure_errors_are_kept_out_and_counted(tmp_path: Path) -> None:
    items = [trajectory(0, 0), trajectory(0, 1, outcome=Outcome("infra_error", "engine died"))]
    buffer = ReplayBuffer(tmp_path, 4, 100)
    assert buffer.append(0, "incumbent", items)
    assert buffer.select(0).ids.tolist() == ["r0-0"]
    manifest = json.loads((tmp_path / "rounds/0000/incumbent/MANIFEST.json").read_text())
    assert manifest["infra_errors_left_out"] == 1
    assert not buffer.append(0, "incumbent", items)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([trajectory(1, 0, role="heldout")], "held out"),
        ([trajectory(2, 0)], "of round 2, appended to round 1"),
        ([trajectory(1, 0), trajectory(1, 0)], "twice"),
    ],
)
def test_what_may_not_be_trained_on_is_refused(
    tmp_path: Path, items: list[Trajectory], message: str
) -> None:
    with pytest.raises(ReplayError, match=message):
        ReplayBuffer(tmp_path, 4, 100).append(1, "incumbent", items)


def test_rounds_come_in_order_and_ids_once_a_round(tmp_path: Path) -> None:
    buffer = fill(tmp_path, 2)
    with pytest.raises(ReplayError, match="after round 1"):
        buffer.append(0, "candidate-01", [trajectory(0, 9)])
    with pytest.raises(ReplayError, match="again in 'candidate-01'"):
        buffer.append(1, "candidate-01", [trajectory(1, 0)])
    with pytest.raises(ReplayError, match="part name"):
        buffer.append(1, "../evil", [])


def test_a_rollout_that_leads_by_a_round_is_appended_before_the_candidates_of_the_one_behind(
    tmp_path: Path,
) -> None:
    buffer = ReplayBuffer(tmp_path, 2, 100, lead=1)
    for number in (0, 1):
        buffer.append(number, "incumbent", [trajectory(number, i) for i in range(2)])
    assert buffer.window(0) == [0]
    buffer.append(0, "select-0", [trajectory(0, 9)])
    buffer.append(2, "incumbent", [trajectory(2, 0)])
    with pytest.raises(ReplayError, match=r"round 0 is appended after round 2.*at most 1 ahead"):
        buffer.append(0, "confirm-0", [trajectory(0, 10)])


def test_what_was_rolled_out_ahead_may_be_a_version_older_and_no_more(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for lead, stale in ((0, 2), (1, 1)):
        buffer = ReplayBuffer(tmp_path / str(lead), 2, 100, lead=lead)
        rows = [trajectory(5, v, segments=(segment(rng, v),)) for v in (3, 4, 5, 6)]
        buffer.append(5, "incumbent", rows)
        assert buffer.select(5, policy_version=6).stale == stale


def test_a_part_without_trajectories_is_kept(tmp_path: Path) -> None:
    ReplayBuffer(tmp_path, 4, 100).append(0, "incumbent", [])
    again = ReplayBuffer(tmp_path, 4, 100)
    assert not again.append(0, "incumbent", [])
    view = again.select(0)
    assert (view.trajectories, view.segments, view.offsets.tolist()) == (0, 0, [0])
    assert view.trainer_logprobs is not None


def test_the_window_is_bounded_in_rounds(tmp_path: Path) -> None:
    buffer = fill(tmp_path, 7, window=4)
    assert buffer.window(6) == [3, 4, 5, 6]
    assert buffer.window(2) == [0, 1, 2]
    assert set(buffer.select(6).rounds.tolist()) == {3, 4, 5, 6}


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 5), capacity=st.integers(1, 23), rounds=st.integers(1, 8))
def test_capacity_in_trajectories_bounds_the_age_at_floor_c_over_s_minus_one(
    tmp_path_factory: pytest.TempPathFactory, size: int, capacity: int, rounds: int
) -> None:
    buffer = fill(tmp_path_factory.mktemp("b"), rounds, each=size, window=100, most=capacity)
    last = rounds - 1
    if capacity < size:
        with pytest.raises(ReplayError, match="never split"):
            buffer.window(last)
        return
    window = buffer.window(last)
    assert last - window[0] == min(last, capacity // size - 1)
    view = buffer.select(last)
    for number in window:  # whole rounds: no group is cut
        assert (view.rounds == number).sum() == size


def test_rows_too_old_are_left_out_at_pull_and_counted_and_future_ones_refused(
    tmp_path: Path,
) -> None:
    buffer = ReplayBuffer(tmp_path, 2, 100)
    rng = np.random.default_rng(0)
    fresh, old = segment(rng, 5), segment(rng, 4)
    rows = [
        trajectory(5, 0, segments=(fresh,)),
        trajectory(5, 1, segments=(fresh, old, fresh)),  # one old token makes the whole row old
        trajectory(5, 2, segments=()),
        trajectory(5, 3, segments=(old,)),
        trajectory(5, 4, segments=(fresh, fresh)),
    ]
    buffer.append(5, "incumbent", rows)
    assert buffer.select(5, policy_version=5).stale == 0
    view = buffer.select(5, policy_version=6)
    assert (view.stale, view.ids.tolist()) == (2, ["r5-0", "r5-2", "r5-4"])
    assert view.trajectory.tolist() == [0, 2, 2]
    assert view.token_ids.tolist() == fresh.token_ids.tolist() * 3
    assert view.offsets.tolist() == [0, len(fresh), 2 * len(fresh), 3 * len(fresh)]
    assert buffer.select(5, policy_version=7).stale == 4
    with pytest.raises(ReplayError, match="policy version 5 and the policy is at 4"):
        buffer.select(5, policy_version=4)


def test_stats_count_staleness_and_the_mix_of_harnesses(tmp_path: Path) -> None:
    stats = fill(tmp_path, 6, each=4, window=3).stats(5, policy_version=5)
    assert stats.staleness == {0: 4, 1: 4, 2: 4}
    assert stats.harness_mix == {"h0": 4, "h1": 8}
    assert (stats.rounds, stats.trajectories) == (3, 12)


def test_trainer_log_probs_are_kept_once_beside_their_part(tmp_path: Path) -> None:
    buffer = fill(tmp_path, 2)
    assert buffer.without_trainer_logprobs(1) == [(0, "incumbent"), (1, "incumbent")]
    assert buffer.select(1).trainer_logprobs is None
    kept = []
    for number in range(2):
        tokens = len(buffer.part_view(number, "incumbent").token_ids)
        values = np.random.default_rng(number).standard_normal(tokens).astype(np.float32)
        assert buffer.write_trainer_logprobs(number, "incumbent", values, number)
        assert not buffer.write_trainer_logprobs(number, "incumbent", values + 1, number)
        kept.append(values)
    again = ReplayBuffer(tmp_path, 4, 100)
    assert again.without_trainer_logprobs(1) == []
    found = again.select(1).trainer_logprobs
    assert found is not None
    assert found.tobytes() == np.concatenate(kept).tobytes()


def test_the_mismatch_is_of_the_tokens_that_this_version_sampled(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    mixed = [trajectory(3, v, segments=(segment(rng, v), segment(rng, v))) for v in (2, 3, 3)]
    buffer = ReplayBuffer(tmp_path, 4, 100)
    buffer.append(3, "incumbent", [dataclasses.replace(t, id=str(i)) for i, t in enumerate(mixed)])
    view = buffer.part_view(3, "incumbent")
    assert buffer.mismatch(3, "incumbent") is None
    values = view.logprobs + np.where(view.versions == 3, np.float32(0.25), np.float32(9.0))
    values[np.flatnonzero(view.versions == 3)[0]] += np.float32(0.5)
    buffer.write_trainer_logprobs(3, "incumbent", values, 3)
    found = ReplayBuffer(tmp_path, 4, 100).mismatch(3, "incumbent")
    n = int((view.versions == 3).sum())
    assert found is not None
    assert (found.tokens, found.max) == (n, pytest.approx(0.75, abs=1e-6))
    assert found.mean == pytest.approx(0.25 + 0.5 / n, abs=1e-6)
    assert found.p99 == pytest.approx(np.quantile([0.25] * (n - 1) + [0.75], 0.99), abs=1e-6)


def test_retention_deletes_token_data_and_keeps_every_record(tmp_path: Path) -> None:
    buffer = ReplayBuffer(tmp_path, 2, 100, keep_rounds=3)
    for number in range(6):
        buffer.append(number, "incumbent", [trajectory(number, i) for i in range(4)])
        tokens = len(buffer.part_view(number, "incumbent").token_ids)
        buffer.write_trainer_logprobs(number, "incumbent", np.zeros(tokens, np.float32), number)
        assert buffer.retain(number) == ([number - 3] if number >= 3 else [])
    assert len(list(tmp_path.glob("rounds/*/*/segments.safetensors"))) == 3
    assert len(list(tmp_path.glob("rounds/*/*/trainer_logprobs.safetensors"))) == 3
    again = ReplayBuffer(tmp_path, 2, 100, keep_rounds=3)
    assert again.rounds() == list(range(6))
    assert [t.id for t in again.trajectories(0)] == [f"r0-{i}" for i in range(4)]
    assert again.mismatch(0, "incumbent") == buffer.mismatch(0, "incumbent")
    assert again.select(5).trajectories == 8
    for read in (
        lambda: again.part_view(2, "incumbent"),
        lambda: again.trajectories(2, tokens=True),
    ):
        with pytest.raises(ReplayError, match=r"0002/incumbent: its token data was deleted .*keep"):
            read()
    assert ReplayBuffer(tmp_path, 2, 100).retain(5) == []
    with pytest.raises(ReplayError, match="keep_rounds is 1 and window_rounds 2"):
        ReplayBuffer(tmp_path, 2, 100, keep_rounds=1)


def test_training_may_read_while_evolution_appends(tmp_path: Path) -> None:
    buffer = fill(tmp_path, 2)
    expected = buffer.select(1, current=["incumbent"]).ids.tolist()
    with ThreadPoolExecutor(2) as pool:
        appending = pool.submit(
            lambda: [buffer.append(1, f"part-{n}", [trajectory(1, 100 + n)]) for n in range(40)]
        )
        while not appending.done():
            assert buffer.select(1, current=["incumbent"]).ids.tolist() == expected
        assert all(appending.result())


def test_trainer_log_probs_of_another_length_are_refused(tmp_path: Path) -> None:
    buffer = fill(tmp_path, 1)
    with pytest.raises(ReplayError, match="one a token"):
        buffer.write_trainer_logprobs(0, "incumbent", np.zeros(1, np.float32), 0)


@pytest.mark.parametrize(
    "name", ["trajectories.parquet", "segments.safetensors", "trainer_logprobs.safetensors"]
)
def test_one_flipped_bit_is_found_and_the_file_named(tmp_path: Path, name: str) -> None:
    buffer = fill(tmp_path, 1)
    tokens = len(buffer.part_view(0, "incumbent").token_ids)
    buffer.write_trainer_logprobs(0, "incumbent", np.zeros(tokens, np.float32), 0)
    path = tmp_path / "rounds/0000/incumbent" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptPartError, match=name.replace(".", r"\.")):
        ReplayBuffer(tmp_path, 4, 100).select(0)


KILLED = """
import itertools, os, shutil, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_replay_buffer import append, retain, two_rounds

before = Path({root!r}) / "before"
before.mkdir()
if {prepare!r}:
    two_rounds(before)
point = 0
while True:
    root = Path({root!r}) / str(point)
    shutil.copytree(before, root)
    child = os.fork()
    if child == 0:
        calls = itertools.count()  # of several threads
        for name in ("fsync", "replace", "unlink"):
            def dying(*args, real=getattr(os, name)):
                if next(calls) == point:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args)
            setattr(os, name, dying)
        {action}(root)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        print(point)
        break
    point += 1
"""


def append(root: Path) -> bool:
    return ReplayBuffer(root, 4, 100).append(0, "incumbent", [trajectory(0, i) for i in range(4)])


def retain(root: Path) -> list[int]:
    return ReplayBuffer(root, 1, 100, keep_rounds=1).retain(1)


def two_rounds(root: Path) -> None:
    buffer = fill(root, 2)
    tokens = len(buffer.part_view(0, "incumbent").token_ids)
    buffer.write_trainer_logprobs(0, "incumbent", np.zeros(tokens, np.float32), 0)


def kill_at_every_point(root: Path, action: str, prepare: bool) -> int:
    """Directory `root`/n gets the action killed at its n-th durable call; how many there are."""
    tests = str(Path(__file__).parent)
    script = KILLED.format(tests=tests, root=str(root), action=action, prepare=prepare)
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    return int(run.stdout)


def test_a_retention_killed_at_any_point_is_finished_by_the_next_one(tmp_path: Path) -> None:
    points = kill_at_every_point(tmp_path, "retain", prepare=True)
    assert points >= 6  # marker: fsync, rename, fsync of the directory; two files; fsync
    readable: set[bool] = set()
    for point in range(points + 1):
        root = tmp_path / str(point)
        buffer = ReplayBuffer(root, 1, 100, keep_rounds=1)
        assert [t.id for t in buffer.trajectories(0)] == [f"r0-{i}" for i in range(4)]
        dropped = (root / "rounds/0000/incumbent/TOKENS_DROPPED.json").exists()
        readable.add(not dropped)
        if dropped:
            with pytest.raises(ReplayError, match="was deleted"):  # never a corrupt part
                buffer.trajectories(0, tokens=True)
        else:
            found = [len(t.segments) for t in buffer.trajectories(0, tokens=True)]
            assert found == [len(trajectory(0, i).segments) for i in range(4)]
        retain(root)
        assert sorted(p.name for p in (root / "rounds/0000/incumbent").glob("*.safetensors")) == []
        assert buffer.select(1).trajectories == 4
    assert readable == {False, True}


def test_an_append_killed_at_any_point_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    points = kill_at_every_point(tmp_path, "append", prepare=False)
    assert points >= 7  # each fsync and rename of an append
    items = [trajectory(0, i) for i in range(4)]
    outcomes: set[bool] = set()
    for point in range(points + 1):
        buffer = ReplayBuffer(tmp_path / str(point), 4, 100)
        survived = buffer.parts(0) == ["incumbent"]
        outcomes.add(survived)
        assert buffer.append(0, "incumbent", items) == (not survived)
        again = ReplayBuffer(tmp_path / str(point), 4, 100)
        for left, right in zip(items, again.trajectories(0, tokens=True), strict=True):
            assert_same(left, right)
    assert outcomes == {False, True}
