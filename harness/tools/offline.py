"""A seccomp program for commands of the tools: no network, no escape from the process group.

Unlike the harness process, a command may start processes. What it may not: open sockets other than
local ones, leave its process group (all of it is killed at the end), trace others, use io_uring
(which opens sockets past this filter), or enter other namespaces.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct

from harness.sandbox.seccomp import SeccompError

_ARCH = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LD, _JEQ, _JGE, _RET = 0x20, 0x15, 0x35, 0x06
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_X32 = 0x40000000
_SOCKET = (41, 198)
_REFUSED = {
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "pidfd_getfd": (438, 438),
    "io_uring_setup": (425, 425),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
}


def program(machine: str | None = None) -> bytes:
    """The BPF program for `machine` (None: this one). Raises SeccompError without a table."""
    machine = machine or platform.machine()
    if machine not in _ARCH:
        raise SeccompError(
            errno.ENOSYS, f"no system call table for {machine!r}; x86_64 and aarch64 have one"
        )
    column, arch = _ARCH[machine]
    out = [_op(_LD, 4), _op(_JEQ, arch, jt=1), _op(_RET, _KILL), _op(_LD, 0)]
    if machine == "x86_64":  # the x32 calls are the same ones under other numbers
        out += [_op(_JGE, _X32, jf=1), _op(_RET, _KILL)]
    for numbers in _REFUSED.values():
        out += [_op(_JEQ, numbers[column], jf=1), _op(_RET, _ERRNO | errno.EPERM)]
    out += [_op(_JEQ, _SOCKET[column], jt=1), _op(_RET, _ALLOW)]
    # The low half of the first argument: the address family.
    out += [_op(_LD, 16), _op(_JEQ, socket.AF_UNIX, jt=1), _op(_RET, _ERRNO | errno.EPERM)]
    out.append(_op(_RET, _ALLOW))
    return b"".join(out)


def _op(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    return struct.pack("HBBI", code, jt, jf, k & 0xFFFFFFFF)
