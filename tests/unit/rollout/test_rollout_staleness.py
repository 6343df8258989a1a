"""Admission by staleness: the formula, its bound, and that nothing waits for ever."""

from __future__ import annotations

import random
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.staleness import AdmissionCounts, StalenessError, StalenessManager


def test_the_capacity_is_the_formula() -> None:
    manager = StalenessManager(batch=8, max_staleness=1)
    assert manager.capacity(0) == (1 + 0 + 1) * 8
    assert manager.admit(0, 10) == 10
    assert manager.admit(0, 10) == 6
    assert manager.admit(0, 10) == 0
    manager.accept(9)
    manager.reject(2)
    assert manager.counts == AdmissionCounts(running=5, accepted=9, rejected=2)
    assert manager.capacity(0) == 16 - (5 + 9)
    assert manager.capacity(3) == 40 - (5 + 9)


def test_without_staleness_rollout_and_training_alternate() -> None:
    manager = StalenessManager(batch=4, max_staleness=0)
    for version in range(5):
        assert manager.admit(version, 100) == 4
        manager.accept(4)
        assert manager.admit(version, 100) == 0


def test_a_resumed_run_counts_what_its_buffer_holds() -> None:
    assert StalenessManager(4, 0, accepted=12).admit(3, 100) == 4
    assert StalenessManager(4, 0, accepted=12).admit(2, 100) == 0


def test_an_episode_ends_once() -> None:
    manager = StalenessManager(4, 0)
    manager.admit(0, 2)
    manager.accept(2)
    for act in (manager.accept, manager.reject):
        with pytest.raises(StalenessError, match=r"1 episodes are \w+, 0 are running"):
            act()
    manager.release(1)
    with pytest.raises(StalenessError, match="2 accepted episodes are released, 1 are there"):
        manager.release(2)
    with pytest.raises(ValueError, match="batch is 0"):
        StalenessManager(0, 0)


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 6),
    staleness=st.integers(0, 3),
    filtered=st.floats(0, 0.9),
    failing=st.floats(0, 0.5),
    overtaking=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_nothing_too_old_is_pulled_and_filtered_groups_never_stop_the_run(
    batch: int, staleness: int, filtered: float, failing: float, overtaking: bool, seed: int
) -> None:
    """Random interleavings of start, end, filter and train. Without overtaking admission alone keeps
    the bound; with it the check at pull has to drop some, whose room others take."""
    rng = random.Random(seed)
    manager = StalenessManager(batch, staleness)
    version, running, ready = 0, [], deque()
    for _ in range(400):
        if rng.random() < 0.5:
            running += [version] * manager.admit(version, rng.randint(1, 4))
        if running and rng.random() < 0.7:
            born = running.pop(rng.randrange(len(running)) if overtaking else 0)
            if rng.random() < failing:
                manager.reject()
            else:
                manager.accept()
                ready.append(born)
        if len(ready) >= batch:
            taken = [ready.popleft() for _ in range(batch)]
            fresh = [born for born in taken if version - born <= staleness]
            assert overtaking or fresh == taken
            kept = [born for born in fresh if rng.random() >= filtered]
            if len(kept) < batch:  # what was dropped gives its room back: others fill the batch
                manager.release(batch - len(kept))
                ready.extendleft(reversed(kept))
            else:
                version += 1
        # Room, running episodes or a whole batch: there is always a next step.
        assert manager.capacity(version) > 0 or running or len(ready) >= batch


def test_threads_never_start_more_than_there_is_room_for() -> None:
    manager = StalenessManager(batch=1000, max_staleness=0)

    def work(seed: int) -> int:
        rng, started = random.Random(seed), 0
        for _ in range(500):
            got = manager.admit(0, rng.randint(1, 3))
            started += got
            if got:
                manager.accept(got)
        return started

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 1000
    assert manager.counts == AdmissionCounts(0, 1000, 0)
