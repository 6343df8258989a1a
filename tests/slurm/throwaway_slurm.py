"""A real Slurm for the tests: munged, slurmctld and slurmds of this machine, on loopback.

Every node is one slurmd with a port of its own, eight CPUs that need not exist and four GPUs that
are /dev/null. Root on Debian; the packages are installed where they are missing. Partitions: main
(n1, n2), frail (n3, n4: their power is cut), spot and high (n5: high preempts spot).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
WAIT_S = 120
"""For anything to happen: far above what it takes, so that a busy machine does not fail a test."""

NAMED = 6
"""Nodes as the partitions name them: n5 twice."""

CONFIG = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.sock,cred_expire=5
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdTimeout=10
GresTypes=gpu
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
MinJobAge=600
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port={first}-{last} CPUs=8 RealMemory=8000 Gres=gpu:4
FirstJobId={id}
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=1-00:00:00 State=UP PreemptMode=OFF
PartitionName=frail Nodes=n[3-4] State=UP PreemptMode=OFF
PartitionName=spot Nodes=n5 State=UP PriorityTier=1 GraceTime=60
PartitionName=high Nodes=n5 State=UP PriorityTier=10 PreemptMode=OFF
"""


def until(true: Callable[[], object], what: str, seconds: float = WAIT_S) -> None:
    """Wait for `true`. Raises AssertionError naming `what`."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def installable() -> str | None:
    """Why there can be no Slurm here, or None; installs it where that is possible."""
    if os.geteuid() != 0:
        return "a Slurm of the tests' own needs root"
    if not all(shutil.which(name) for name in ("slurmctld", "slurmd", "sbatch", "munged")):
        if shutil.which("apt-get") is None:
            return "Slurm is not installed and there is no apt-get"
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        quiet = {"env": environment, "capture_output": True, "check": True}
        subprocess.run(["apt-get", "update", "-q"], **quiet)  # type: ignore[call-overload]
        subprocess.run(
            ["apt-get", "install", "-y", "-q", "--no-install-recommends", *PACKAGES], **quiet
        )  # type: ignore[call-overload]
    return None


class ThrowawaySlurm:
    """Use as a context manager; SLURM_CONF points at it meanwhile."""

    def __init__(self, directory: Path, nodes: int = 5) -> None:
        self.directory = directory
        self.nodes = [f"n{i + 1}" for i in range(nodes)]
        self.config = directory / "slurm.conf"

    def __enter__(self) -> ThrowawaySlurm:
        d, host = self.directory, socket.gethostname()
        (d / "state").mkdir(parents=True)
        d.chmod(0o755)
        for i in range(4):
            os.mknod(d / f"gpu{i}", 0o666 | 0o020000, os.makedev(1, 3))
        for name in self.nodes:
            (d / f"spool-{name}").mkdir()
        (d / "munge.key").write_bytes(os.urandom(128))
        (d / "munge.key").chmod(0o600)
        port = _free_ports(1 + len(self.nodes))
        self.config.write_text(
            CONFIG.format(
                dir=d, host=host, port=port, nodes=len(self.nodes), first=port + 1,
                last=port + len(self.nodes), id=os.getpid() * 10,
            )
        )  # fmt: skip
        (d / "gres.conf").write_text(f"Name=gpu File={d}/gpu[0-3] Flags=nvidia_gpu_env\n")
        os.environ["SLURM_CONF"] = str(self.config)
        subprocess.run(
            ["munged", "--force", f"--socket={d}/munge.sock", f"--key-file={d}/munge.key",
             f"--pid-file={d}/munged.pid", f"--log-file={d}/munged.log",
             f"--seed-file={d}/munged.seed"],
            check=True,
        )  # fmt: skip
        subprocess.run(["slurmctld", "-c"], check=True)
        for name in self.nodes:
            self.start_node(name)
        until(
            lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D", "-p", "main") == "2",
            "idle nodes",
        )
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["scancel", "-u", "root"], check=False)
        until(lambda: self.ask("squeue", "-h") == "", "an empty queue")
        daemons = [f"slurmd-{name}" for name in self.nodes]
        for daemon in (*daemons, "slurmctld", "munged"):
            self._end(daemon, signal.SIGTERM)
        del os.environ["SLURM_CONF"]

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout.strip()

    def start_node(self, name: str) -> None:
        subprocess.run(["slurmd", "-N", name], check=True)

    def kill_node(self, name: str) -> None:
        """Power off: the slurmd, and every process of every step on the node, by SIGKILL."""
        self._end(f"slurmd-{name}", signal.SIGKILL)
        mine = [pid for pid in _pids() if _environ(pid).get("SLURMD_NODENAME") == name
                and _environ(pid).get("SLURM_CONF") == str(self.config)]  # fmt: skip
        stepds = {
            parent for pid in mine if (parent := _parent(pid)) and _name(parent) == "slurmstepd"
        }
        for pid in (*stepds, *mine):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _end(self, daemon: str, number: signal.Signals) -> None:
        file = self.directory / f"{daemon}.pid"
        if not file.exists():
            return
        pid = int(file.read_text())
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        until(
            lambda: not Path(f"/proc/{pid}").exists() or _state(pid) == "Z", f"the end of {daemon}"
        )


def _free_ports(count: int) -> int:
    """The first of `count` neighbouring free ports."""
    for first in range(16_800, 19_000, 10):
        taken = False
        for port in range(first, first + count):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    taken = True
        if not taken:
            return first
    raise AssertionError("no free ports for Slurm")


def _pids() -> list[int]:
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]


def _environ(pid: int) -> dict[str, str]:
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    return dict(item.split("=", 1) for item in content.split("\0") if "=" in item)


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _parent(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def _state(pid: int) -> str | None:
    fields = _stat(pid)
    return fields[0] if fields else None


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
