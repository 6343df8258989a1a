"""The wire protocol carries every record unchanged; the system-call filter is what it says."""

from __future__ import annotations

import errno
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bundle import Bundle
from harness.component import Component, File
from harness.events import TaskView, ToolCallSpec, ToolSpec
from harness.host import ModelReply, ToolReply, ToolRequest
from harness.jsonvalue import FrozenDict
from harness.metered import Budgets
from harness.runloop import RunResult
from harness.sandbox import protocol, seccomp
from harness.sandbox.containment import Probe, SandboxUnavailable, plans
from harness.sandbox.protocol import ProtocolError, decode, encode
from harness.sandbox.syscalls import ALLOWED, CHECKED, REFUSED
from harness.sandbox.zygote import Confinement

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
count = st.integers(0, (1 << 31) - 1)
scalar = st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | text
inputs = st.dictionaries(text, scalar | st.dictionaries(text, scalar, max_size=2), max_size=3)
calls = st.lists(st.builds(ToolCallSpec, text, text, inputs), max_size=2).map(tuple)
texts = st.lists(text, max_size=3).map(tuple)


def there(record: Any) -> Any:
    return decode(encode({"record": record})[:-1])["record"]


@settings(max_examples=60, deadline=None)
@given(st.builds(ModelReply, text, calls, text, count, count))
def test_a_model_reply_arrives_as_it_was_sent(reply: ModelReply) -> None:
    assert protocol.load_model_reply(there(protocol.dump_model_reply(reply))) == reply


@settings(max_examples=60, deadline=None)
@given(
    st.builds(ToolRequest, count, text, text, inputs),
    st.builds(ToolReply, text, st.booleans(), texts, st.booleans()),
)
def test_a_tool_call_and_its_answer_arrive_as_they_were_sent(
    request: ToolRequest, reply: ToolReply
) -> None:
    assert protocol.load_tool_request(there(protocol.dump_tool_request(request))) == request
    assert protocol.load_tool_reply(there(protocol.dump_tool_reply(reply))) == reply


def test_a_start_and_a_result_arrive_as_they_were_sent() -> None:
    task = TaskView("do", "env", (ToolSpec("t", "d", FrozenDict(x=1)),), "t", 7)
    start = (task, ToolReply("hi", choices=("a",)), -5, Budgets(3, 100, 1.5, 9), "full")
    assert protocol.load_start(there(protocol.dump_start(*start))) == start  # type: ignore[arg-type]
    result = RunResult("truncated", "why", 3, "out")
    assert protocol.load_result(there(protocol.dump_result(result))) == result


def test_a_bundle_arrives_with_its_id() -> None:
    bundle = Bundle(
        (Component("own", "processor", "own.py:Own", {"x": [1, {"y": 0.5}]}, order=3),),
        {"own.py": File(b"\x00\xff", executable=True), "a/b.md": File("ü".encode())},
    )
    assert protocol.load_bundle(there(protocol.dump_bundle(bundle))).id == bundle.id


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nope",
        b"[]",
        b"\xff",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b"[" * 9999,
    ],
)
def test_a_line_that_is_no_json_object_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(line)


@pytest.mark.parametrize("value", [float("nan"), object(), b"x", "x" * protocol.MAX_LINE])
def test_what_json_cannot_carry_is_not_sent(value: object) -> None:
    with pytest.raises(ProtocolError):
        encode({"value": value})


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_decode_to_an_object_or_a_protocol_error(data: bytes) -> None:
    try:
        value: object = decode(data)
    except ProtocolError:
        value = {}
    assert type(value) is dict


def verdict(machine: str, number: int, *arguments: int) -> int:
    """Interpret the filter as the kernel would; returns the action."""
    arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    data = struct.pack("<IIQ6Q", number, arch, 0, *(list(arguments) + [0] * 6)[:6])
    code = seccomp.program(machine)
    at = accumulator = 0
    while True:
        op, jt, jf, k = struct.unpack_from("HBBI", code, 8 * at)
        at += 1
        if op == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif op == 0x54:
            accumulator &= k
        elif op == 0x15:
            at += jt if accumulator == k else jf
        elif op == 0x45:
            at += jt if accumulator & k else jf
        else:
            return k


ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS


@pytest.mark.parametrize(("machine", "column"), [("x86_64", 0), ("aarch64", 1)])
def test_the_filter_answers_every_listed_call(machine: str, column: int) -> None:
    for table, action in ((ALLOWED, ALLOW), (REFUSED, EPERM)):
        for numbers in table.values():
            if numbers[column] is not None:
                assert verdict(machine, numbers[column]) == action
    for unknown in (435, 426, 462, 999, 0x40000000):
        assert verdict(machine, unknown) == ENOSYS


@pytest.mark.parametrize(("machine", "column"), [("x86_64", 0), ("aarch64", 1)])
@pytest.mark.parametrize(
    ("name", "arguments", "action"),
    [
        ("clone", (0x3D0F00,), ALLOW),  # a thread
        ("clone", (0x1200011,), EPERM),  # fork
        ("clone", (0x10000000,), EPERM),  # a user namespace
        ("socketpair", (1, 0x80001), ALLOW),
        ("socketpair", (1, 2), EPERM),
        ("socketpair", (2, 1), EPERM),
        ("fcntl", (3, 4), ALLOW),
        ("fcntl", (3, 8), EPERM),  # F_SETOWN
        ("ioctl", (3, 0x5421), ALLOW),
        ("ioctl", (3, 0x5412), EPERM),  # TIOCSTI
        ("prlimit64", (0,), ALLOW),
        ("prlimit64", (1,), EPERM),
    ],
)
def test_some_calls_depend_on_their_arguments(
    machine: str, column: int, name: str, arguments: tuple[int, ...], action: int
) -> None:
    number = CHECKED[name][column]
    assert number is not None
    assert verdict(machine, number, *arguments) == action


def test_no_call_is_in_two_tables() -> None:
    for column in (0, 1):
        numbers = [
            n[column]
            for t in (ALLOWED, REFUSED, CHECKED)
            for n in t.values()
            if n[column] is not None
        ]
        assert len(numbers) == len(set(numbers))


def test_an_architecture_without_a_table_is_refused() -> None:
    with pytest.raises(seccomp.SeccompError, match="riscv64"):
        seccomp.program("riscv64")


def test_the_strongest_way_is_tried_first_and_none_is_an_error_that_says_what_to_do() -> None:
    everything = Probe("/usr/bin/bwrap", 7, True)
    assert [p.name for p in plans("auto", everything, 2)] == [
        "bubblewrap",
        "bubblewrap",
        "landlock",
    ]
    assert "--unshare-net" not in plans("auto", everything, 2)[1].command
    assert [p.name for p in plans("auto", Probe(None, 1, True), 2)] == ["landlock"]
    bare = plans("bubblewrap", Probe("/usr/bin/bwrap", 0, True), 2)[0]
    assert (bare.confinement.landlock, bare.confinement.seccomp) == (False, True)
    for level, machine in (
        ("auto", Probe(None, 0, True)),
        ("auto", Probe("/usr/bin/bwrap", 7, False)),
        ("bubblewrap", Probe(None, 7, True)),
        ("landlock", Probe("/usr/bin/bwrap", 0, True)),
    ):
        with pytest.raises(SandboxUnavailable, match="unsafe_local"):
            plans(level, machine, 2)  # type: ignore[arg-type]
    (plain,) = plans("unsafe_local", Probe(None, 0, False), 2)
    assert plain.confinement == Confinement(landlock=False, seccomp=False)


def test_a_confinement_survives_its_command_line() -> None:
    confinement = Confinement(True, True, ("/usr",), ("/scratch/0",))
    assert Confinement.from_json(confinement.to_json()) == confinement
