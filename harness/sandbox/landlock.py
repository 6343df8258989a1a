"""landlock: which files a harness process may read and write, and whom it may signal.

Source: Linux Documentation/userspace-api/landlock.rst. A newer ABI is stepped down where a kernel
announces it and then answers EINVAL.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_EXECUTE, _WRITE_FILE, _TRUNCATE, _IOCTL_DEV = 1 << 0, 1 << 1, 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
# Making devices, sockets and fifos (bits 6, 9, 10, 11) is granted nowhere.
_MAKE_PLAIN = (1 << 4) | (1 << 5) | (1 << 7) | (1 << 8)
_HANDLED = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL = (1 << 16) - 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_NET, _SCOPES = 3, 3
SCOPED_ABI = 6
"""From this ABI on, signals and abstract sockets outside the sandbox are out of reach too."""


class LandlockError(OSError):
    """The kernel has no landlock, or refused the rules."""


def abi() -> int:
    """The kernel's landlock ABI; 0 where it has none or it is switched off."""
    return max(int(_LIBC.syscall(_CREATE, None, 0, 1)), 0)


def confine(
    read: Iterable[str],
    write: Iterable[str],
    *,
    execute: Iterable[str] = (),
    max_abi: int | None = None,
) -> int:
    """Allow reading below `read`, changing files below `write`, reading and running below
    `execute`; all else is refused.

    Missing paths are left out. Returns the ABI in force. Raises LandlockError.
    """
    top = abi() if max_abi is None else min(abi(), max_abi)
    ruleset, in_force = -1, 0
    for version in range(top, 0, -1):
        handled = _HANDLED.get(version, _ALL)
        if version >= SCOPED_ABI:
            attributes = struct.pack("QQQ", handled, _NET, _SCOPES)
        elif version >= 4:
            attributes = struct.pack("QQ", handled, _NET)
        else:
            attributes = struct.pack("Q", handled)
        ruleset = int(_LIBC.syscall(_CREATE, attributes, len(attributes), 0))
        if ruleset >= 0:
            in_force = version
            break
        if ctypes.get_errno() != errno.EINVAL:
            break
    if ruleset < 0:
        raise _error("the kernel has no landlock, or it is switched off")
    try:
        for path in read:
            _add(ruleset, path, _READ_FILE | _READ_DIR, handled)
        for path in execute:
            _add(ruleset, path, _READ_FILE | _READ_DIR | _EXECUTE, handled)
        for path in write:
            rights = _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE | _MAKE_PLAIN
            _add(ruleset, path, rights, handled)
        if _LIBC.prctl(38, 1, 0, 0, 0) or _LIBC.syscall(_RESTRICT, ruleset, 0):
            raise _error("the rules were refused")
    finally:
        os.close(ruleset)
    return in_force


def _add(ruleset: int, path: str, rights: int, handled: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _FILE_RIGHTS
        if _LIBC.syscall(_ADD, ruleset, 1, struct.pack("=Qi", rights & handled, fd), 0):
            raise _error(f"no rule for {path}")
    finally:
        os.close(fd)


def _error(what: str) -> LandlockError:
    number = ctypes.get_errno()
    return LandlockError(number, f"{what}: {os.strerror(number)}")
