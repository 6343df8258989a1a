"""The store stays whole: under writers at once, under kill -9 at any instant, under damage."""

import fcntl
import json
import logging
import multiprocessing
import os
import random
import signal
import sys

import pytest

from harness.bundle import Bundle, Component, File
from harness.edit import PutFile, SetParam, apply
from harness.store import Lineage, Record, Store, StoreError

FORK = multiprocessing.get_context("fork")


def bundle(n):
    return Bundle(
        (Component("window", "context_mgmt", params={"turns": n}),),
        {"a/b.txt": File(b"x" * n), "run.sh": File(b"#!/bin/sh\n", True)},
    )


def evolve(store):
    """Three rounds of a lineage, as the loop writes them."""
    parent = store.add(bundle(0), source="seed")
    store.move("incumbent", parent)
    for n in (1, 2):
        edits = (SetParam("window", "turns", n), PutFile("a/b.txt", File(b"x" * n)))
        child = store.add(bundle(n), parents=(parent,), edits=edits, source="proposer", round=n)
        store.record(Record(child, round=n, verdict="apply"))
        store.move("incumbent", child, round=n)
        parent = child
    store.rollback("incumbent", bundle(0).id, round=3, note="drift")


def state(store):
    return store.ids(), store.records(), store.pointers()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("expected"))
    evolve(store)
    return state(store)


def test_what_is_put_can_be_got(tmp_path):
    store = Store(tmp_path)
    assert store.put(bundle(3)) == bundle(3).id
    assert store.put(bundle(3)) == bundle(3).id
    assert store.get(bundle(3).id) == bundle(3)
    assert store.ids() == (bundle(3).id,)
    assert bundle(3).id in store
    assert bundle(4).id not in store
    assert list((tmp_path / "tmp").iterdir()) == []


def test_an_object_is_written_read_only(tmp_path):
    store = Store(tmp_path)
    path = store.path(store.put(bundle(1)))
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.rglob("*") if file.is_file()}
    assert modes == {"harness.yaml": 0o444, "b.txt": 0o444, "run.sh": 0o555}


def test_damage_is_found_on_every_read(tmp_path):
    store = Store(tmp_path)
    id = store.put(bundle(1))
    file = store.path(id) / "a/b.txt"
    file.chmod(0o644)
    file.write_bytes(b"y")
    for read in (lambda: store.get(id), lambda: store.put(bundle(1))):
        with pytest.raises(StoreError, match=f"bundle {id} .* is damaged; remove its directory"):
            read()


@pytest.mark.parametrize("id", ["", "abc", "../../etc", "A" * 64])
def test_an_id_is_64_hex_digits(tmp_path, id):
    with pytest.raises(StoreError, match="expected 64 hex digits"):
        Store(tmp_path).get(id)
    assert id not in Store(tmp_path)


def test_an_unknown_bundle_is_named(tmp_path):
    with pytest.raises(StoreError, match=f"has no bundle {bundle(1).id}"):
        Store(tmp_path).get(bundle(1).id)


def test_a_bundle_is_found_by_prefix_or_pointer(tmp_path):
    store = Store(tmp_path)
    evolve(store)
    assert store.resolve(bundle(1).id[:20]) == bundle(1).id
    assert store.resolve("incumbent") == bundle(0).id
    for prefix in ("", "zz"):
        with pytest.raises(StoreError, match="bundles that begin with"):
            store.resolve(prefix)


def test_the_lineage_walks_back_to_the_seed(tmp_path):
    store = Store(tmp_path)
    evolve(store)
    walk = store.lineage(bundle(2).id)
    assert [(item.id, item.verdict) for item in walk] == [
        (bundle(2).id, None),
        (bundle(2).id, "apply"),
        (bundle(1).id, None),
        (bundle(1).id, "apply"),
        (bundle(0).id, None),
    ]
    assert apply(store.get(walk[0].parents[0]), walk[0].edits) == bundle(2)
    with pytest.raises(StoreError, match="does not mention"):
        store.lineage(bundle(9).id)


def test_the_walk_ends_where_two_bundles_are_each_others_parents(tmp_path):
    store = Store(tmp_path)
    one, two = store.put(bundle(1)), store.put(bundle(2))
    store.record(Record(one, parents=(two,)))
    store.record(Record(two, parents=(one,)))
    assert [item.id for item in store.lineage(one)] == [one, two]


def test_every_move_of_a_pointer_is_recorded_once(tmp_path):
    store = Store(tmp_path)
    ids = [store.put(bundle(n)) for n in range(2)]
    for id in (ids[0], ids[0], ids[1], ids[0], ids[1]):
        store.move("best", id)
    moves = [(item.event, item.previous, item.id) for item in store.records().records]
    assert moves == [
        ("pointer", None, ids[0]),
        ("pointer", ids[0], ids[1]),
        ("pointer", ids[1], ids[0]),
        ("pointer", ids[0], ids[1]),
    ]
    store.rollback("best", ids[0])
    assert store.records().records[-1].event == "rollback"
    assert store.pointers() == {"best": ids[0]}


def test_a_pointer_needs_its_bundle_a_rollback_its_history_and_both_a_plain_name(tmp_path):
    store = Store(tmp_path)
    assert store.pointer("best") is None
    with pytest.raises(StoreError, match="has no bundle"):
        store.move("best", bundle(1).id)
    id = store.put(bundle(1))
    with pytest.raises(StoreError, match="never named bundle"):
        store.rollback("best", id)
    with pytest.raises(StoreError, match="no pointer name"):
        store.move("../x", id)
    (tmp_path / "pointers/best").write_text("junk")
    with pytest.raises(StoreError, match="holds 'junk'"):
        store.pointer("best")


def test_a_record_speaks_of_bundles_that_are_there(tmp_path):
    store = Store(tmp_path)
    id = store.put(bundle(1))
    with pytest.raises(StoreError, match=f"has no bundle {bundle(2).id}"):
        store.record(Record(id, parents=(bundle(2).id,)))
    with pytest.raises(StoreError, match="move or rollback only"):
        store.record(Record(id, "pointer", pointer="best"))
    with pytest.raises(ValueError, match="64 hex digits"):
        Record("x")


def test_a_line_is_json_with_a_schema_number_and_no_defaults(tmp_path):
    store = Store(tmp_path)
    id = store.add(bundle(1), source="seed", round=0, note="two\nlines")
    (line,) = (tmp_path / "lineage.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "schema": 1,
        "id": id,
        "event": "bundle",
        "source": "seed",
        "round": 0,
        "note": "two\nlines",
    }


@pytest.mark.parametrize(
    "line", ["{}", "[]", "nonsense", '{"schema": 2}', '{"schema": 1, "id": "x"}', ""]
)
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    store = Store(tmp_path)
    store.add(bundle(1), source="seed")
    with open(tmp_path / "lineage.jsonl", "a") as stream:
        stream.write(line + "\n")
    with pytest.raises(StoreError, match="line 2 is no lineage record"):
        store.records()


def test_a_torn_last_line_is_reported_and_the_next_record_replaces_it(tmp_path, caplog):
    store = Store(tmp_path)
    store.add(bundle(1), source="seed")
    store.add(bundle(2), source="é")
    whole = (tmp_path / "lineage.jsonl").read_bytes()
    records = store.records().records
    start = whole.index(b"\n") + 1
    for cut in range(start, len(whole)):
        (tmp_path / "lineage.jsonl").write_bytes(whole[:cut])
        fragment = whole[start:cut].decode(errors="replace") or None
        assert store.records() == Lineage(records[:1], fragment)
    with caplog.at_level(logging.WARNING):
        store.add(bundle(2), source="é")
    assert "torn last line" in caplog.text
    assert store.records() == Lineage(records)
    assert (tmp_path / "lineage.jsonl").read_bytes() == whole


def _write_many(root, seed):
    store, rng = Store(root), random.Random(seed)
    for _ in range(12):
        id = store.add(bundle(rng.randrange(6)), source="writer", round=rng.randrange(3))
        store.move("best", id)
        store.sweep()


def test_writers_at_once_leave_a_whole_store(tmp_path):
    Store(tmp_path)
    writers = [FORK.Process(target=_write_many, args=(tmp_path, seed)) for seed in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    store = Store(tmp_path)
    for id in store.ids():
        store.get(id)
    records = store.records()
    assert records.torn is None
    births = [(item.id, item.round) for item in records.records if item.event == "bundle"]
    assert len(set(births)) == len(births)
    moves = [item for item in records.records if item.event == "pointer"]
    assert [item.previous for item in moves] == [None, *(item.id for item in moves[:-1])]
    assert store.pointer("best") == moves[-1].id
    assert list((tmp_path / "tmp").iterdir()) == []


def _evolve_until(root, limit, counted=None):
    """`evolve`, killed by signal 9 just before its `limit`-th call of a C function."""
    store, calls = Store(root), 0

    def count(frame, event, arg):
        nonlocal calls
        if event == "c_call":
            calls += 1
            if calls == limit:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    evolve(store)
    sys.setprofile(None)
    if counted is not None:
        counted.put(calls)


def test_a_writer_killed_at_any_instant_and_run_again_ends_in_the_same_store(tmp_path, expected):
    counted = FORK.SimpleQueue()
    whole = FORK.Process(target=_evolve_until, args=(tmp_path / "whole", None, counted))
    whole.start()
    whole.join()
    assert state(Store(tmp_path / "whole")) == expected
    total = counted.get()

    rng = random.Random(11)
    for limit in sorted(rng.sample(range(1, total), 20)):
        root = tmp_path / str(limit)
        writer = FORK.Process(target=_evolve_until, args=(root, limit))
        writer.start()
        writer.join()
        assert writer.exitcode == -signal.SIGKILL
        store = Store(root)
        for id in store.ids():
            store.get(id)
        seen = store.records().records
        assert seen == expected[1].records[: len(seen)]
        store.sweep()
        assert list((root / "tmp").iterdir()) == []
        evolve_again(store)
        assert state(store) == expected


def evolve_again(store):
    """What a resumed run does: the moves that the lineage already tells of are not made again."""
    done = [item for item in store.records().records if item.pointer]
    if not done:
        evolve(store)
        return
    last, at = done[-1], store.pointer("incumbent")
    if at != last.id:
        getattr(store, "rollback" if last.event == "rollback" else "move")("incumbent", last.id)
    _Resumed(store, len(done)).run()


class _Resumed:
    """A store whose first `skip` moves are no-ops."""

    def __init__(self, store, skip):
        self.store, self.skip = store, skip
        self.add, self.record = store.add, store.record

    def run(self):
        evolve(self)

    def move(self, *args, **kwargs):
        self._once(self.store.move, *args, **kwargs)

    def rollback(self, *args, **kwargs):
        self._once(self.store.rollback, *args, **kwargs)

    def _once(self, act, *args, **kwargs):
        self.skip -= 1
        if self.skip < 0:
            act(*args, **kwargs)


def test_sweep_leaves_the_scratch_of_a_live_writer(tmp_path):
    store = Store(tmp_path)
    (tmp_path / "tmp/dead").mkdir()
    (tmp_path / "tmp/live").mkdir()
    handle = os.open(tmp_path / "tmp/live", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        assert store.sweep() == 1
        assert [path.name for path in (tmp_path / "tmp").iterdir()] == ["live"]
    finally:
        os.close(handle)
    assert store.sweep() == 1
