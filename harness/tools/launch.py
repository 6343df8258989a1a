"""Confines its own process as told and becomes the command: the last step before a tool's command.

Run as a file by a bare interpreter, so it imports nothing of this package by name.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType


def main(text: str) -> None:
    order = json.loads(text)
    limits = _beside("limits").Limits(**order["limits"])
    _beside("limits").apply_rlimits(limits, 0)
    if order["processes"]:
        import resource

        resource.setrlimit(resource.RLIMIT_NPROC, (order["processes"], order["processes"]))
    if order["seccomp"]:
        _drop_capabilities()
    if order["landlock"]:
        _beside("landlock").confine(
            (), order["write"], execute=(*order["execute"], *order["write"])
        )
    if order["seccomp"]:
        _filter(base64.b64decode(order["seccomp"]))
    os.chdir(order["cwd"])
    try:
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        print(f"{order['argv'][0]}: {error.strerror}", file=sys.stderr)
        os._exit(127)


def _beside(name: str) -> ModuleType:
    """A module of the sandbox package by its path: the package itself imports far more."""
    if name not in sys.modules:
        path = Path(__file__).resolve().parent.parent / "sandbox" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def _drop_capabilities() -> None:
    """A command that runs as root has none of root's powers after its exec."""
    libc = ctypes.CDLL(None)
    for capability in range(64):
        libc.prctl(24, capability, 0, 0, 0)  # refused where there is nothing to drop


def _filter(code: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    program = Program(len(code) // 8, ctypes.addressof(buffer))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel refused the filter")


if __name__ == "__main__":
    main(sys.argv[1])
