"""seccomp: a list of the system calls that a harness process may make, as a BPF program.

No new process, no exec, no socket but a connected pair, no signal to anyone, nothing of the
kernel's administration; threads are allowed. Applied by `confine` after the interpreter has
started; it cannot be taken back.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
import termios
from functools import cache

from harness.sandbox.syscalls import ALLOWED, CHECKED, REFUSED, Numbers

_ARCH = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LD, _JEQ, _JSET, _AND, _RET = 0x20, 0x15, 0x45, 0x54, 0x06
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_CLONE_THREAD = 0x00010000
_FCNTL = (0, fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_SETFL, fcntl.F_DUPFD_CLOEXEC)
_IOCTL = (
    termios.TCGETS,
    termios.TIOCGWINSZ,
    termios.FIONBIO,
    termios.FIONREAD,
    termios.FIOCLEX,
    termios.FIONCLEX,
)
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_GET_SECCOMP = 38, 22, 21


class SeccompError(OSError):
    """The kernel refused the filter, or this machine's architecture has no table."""


def available() -> bool:
    """Whether this kernel filters system calls and this architecture has a table."""
    return platform.machine() in _ARCH and _LIBC.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0


@cache
def program(machine: str | None = None) -> bytes:
    """The BPF program for `machine` (x86_64 or aarch64; None: this one). Raises SeccompError."""
    machine = machine or platform.machine()
    if machine not in _ARCH:
        raise SeccompError(
            errno.ENOSYS, f"no system call table for {machine!r}; x86_64 and aarch64 have one"
        )
    column, arch = _ARCH[machine]
    out = [
        _op(_LD, 4),
        _op(_JEQ, arch, jt=1),
        _op(_RET, _KILL),
        _op(_LD, 0),
    ]

    def number(numbers: Numbers) -> int | None:
        return numbers[column]

    for numbers in ALLOWED.values():
        out += _answer(number(numbers), _ALLOW)
    out += _checked(number(CHECKED["clone"]), 0, None)
    out += _checked(number(CHECKED["fcntl"]), 1, _FCNTL)
    out += _checked(number(CHECKED["ioctl"]), 1, _IOCTL)
    out += _checked(number(CHECKED["prlimit64"]), 0, (0,))  # its own limits only
    out += _pair(number(CHECKED["socketpair"]))
    for numbers in REFUSED.values():
        out += _answer(number(numbers), _ERRNO | errno.EPERM)
    # glibc falls back to what it knows on ENOSYS (clone3 to clone, whose flags can be read).
    out.append(_op(_RET, _ERRNO | errno.ENOSYS))
    return b"".join(out)


def confine() -> None:
    """Apply the filter to the calling thread and all it will start. Raises SeccompError."""
    code = program()
    if _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise SeccompError(ctypes.get_errno(), "no_new_privs was refused")
    buffer = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    )
    if _LIBC.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(header), 0, 0):
        number = ctypes.get_errno()
        raise SeccompError(number, f"the kernel refused the filter: {os.strerror(number)}")


def _op(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    return struct.pack("HBBI", code, jt, jf, k & 0xFFFFFFFF)


def _answer(number: int | None, action: int) -> list[bytes]:
    if number is None:
        return []
    return [_op(_JEQ, number, jf=1), _op(_RET, action)]


def _low(argument: int) -> int:
    """Offset of the low 32 bits of an argument in struct seccomp_data (little endian)."""
    return 16 + 8 * argument


def _block(number: int | None, body: list[bytes]) -> list[bytes]:
    """`body`, run where the call is `number`; it ends in a RET on every way."""
    return [] if number is None else [_op(_JEQ, number, jf=len(body)), *body]


def _checked(number: int | None, argument: int, values: tuple[int, ...] | None) -> list[bytes]:
    """Allow where the argument is one of `values`; None: where it is a new thread's clone flags."""
    body = [_op(_LD, _low(argument))]
    if values is None:
        body += [_op(_JSET, _CLONE_THREAD, jf=1), _op(_RET, _ALLOW)]
    else:
        for value in values:
            body += [_op(_JEQ, value, jf=1), _op(_RET, _ALLOW)]
    return _block(number, [*body, _op(_RET, _ERRNO | errno.EPERM)])


def _pair(number: int | None) -> list[bytes]:
    """socketpair(AF_UNIX, SOCK_STREAM): a datagram pair could send to any address."""
    refuse = _op(_RET, _ERRNO | errno.EPERM)
    return _block(
        number,
        [
            _op(_LD, _low(0)),
            _op(_JEQ, socket.AF_UNIX, jt=1),
            refuse,
            _op(_LD, _low(1)),
            _op(_AND, 0xF),
            _op(_JEQ, socket.SOCK_STREAM, jf=1),
            _op(_RET, _ALLOW),
            refuse,
        ],
    )
