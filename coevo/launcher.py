"""What runs inside a job: one node of its Ray cluster (`node`), and the run itself (`drive`).

slurm/job.sh starts both, within the container where there is one. The head writes its address to a
file of the attempt's log directory; workers and driver wait for that file.
"""

from __future__ import annotations

import argparse
import importlib
import os
import socket
import struct
import sys
import sysconfig
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from harness.atomic import write_atomic

PORT_BASE, PORT_BLOCKS, PORT_STEP = 20_000, 600, 20
"""Above Ray's own range (10002-19999) and below Linux's ephemeral ports (from 32768)."""
PORTS = ("gcs", "client", "agent")
TRIES = 5
ENVIRONMENT = {
    "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "GRPC_DNS_RESOLVER": "native",
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
}
"""Of every process of the job. The first: a dead head is noticed in 15 s, not in 60."""


class LaunchError(RuntimeError):
    """A node or the driver could not start: infrastructure, worth another attempt."""


def first_port(job: int) -> int:
    """The first of a job's ports: jobs that share a node differ in it."""
    return PORT_BASE + (job % PORT_BLOCKS) * PORT_STEP


def free_ports(ip: str, job: int) -> dict[str, int]:
    """A port each for PORTS, free on `ip` now. Raises LaunchError where TRIES blocks are taken.

    Job ids that lie a multiple of 600 apart start at the same block: the later takes the next.
    """
    for attempt in range(TRIES):
        first = first_port(job + attempt * 97)
        if all(is_free(ip, first + i) for i in range(len(PORTS))):
            return {name: first + i for i, name in enumerate(PORTS)}
    raise LaunchError(
        f"ports {first_port(job)} and {TRIES - 1} other blocks are taken on {ip}; another job or "
        "service listens there (ss -ltn)"
    )


def is_free(ip: str, port: int) -> bool:
    """Whether a server may listen on the TCP port `port` of `ip` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
        except OSError:
            return False
        return True


def address_of(interface: str | None) -> str:
    """IPv4 address of `interface`, or the one that a packet to outside leaves from.

    Raises LaunchError where there is none, naming the interfaces that have one.
    """
    found = {name: ip for _, name in socket.if_nameindex() if (ip := _ip(name))}
    if interface is not None:
        if interface in found:
            return found[interface]
        raise LaunchError(
            f"cluster.interface {interface!r} has no IPv4 address on {socket.gethostname()}; those "
            f"that have: {_listed(found)}"
        )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.254.254.254", 1))  # sends nothing: asks the routing table
        except OSError as error:
            raise LaunchError(
                f"{socket.gethostname()} has no route out ({error}); set cluster.interface to one "
                f"of: {_listed(found)}"
            ) from error
        return str(probe.getsockname()[0])


def _ip(interface: str) -> str | None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _listed(found: dict[str, str]) -> str:
    return ", ".join(f"{name} ({ip})" for name, ip in found.items()) or "none"


def wait_for_head(file: Path, timeout_s: float) -> str:
    """IP:PORT of a head that answers. Raises LaunchError after `timeout_s`."""
    end = time.monotonic() + timeout_s
    why = f"{file} was not written"
    while time.monotonic() < end:
        if file.exists():
            address = file.read_text().strip()
            ip, _, port = address.rpartition(":")
            try:
                socket.create_connection((ip, int(port)), timeout=5).close()
                return address
            except OSError as error:
                why = f"{address} does not answer ({error})"
        time.sleep(0.3)
    raise LaunchError(f"no Ray head after {timeout_s:g} s: {why}; see ray-*.log beside it")


def _environment(ip: str, interface: str | None) -> None:
    os.environ.update(ENVIRONMENT)
    os.environ["VLLM_HOST_IP"] = ip
    if interface is not None:
        os.environ["NCCL_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"] = interface


def node(options: argparse.Namespace) -> None:
    """Becomes this node's `ray start --block`; returns only by raising."""
    ip = address_of(options.interface)
    _environment(ip, options.interface)
    ports = free_ports(ip, options.job)
    arguments = [
        f"--node-ip-address={ip}",
        f"--num-cpus={options.cpus}",
        f"--num-gpus={options.gpus}",
        f"--object-store-memory={options.object_store}",
        f"--temp-dir={options.temp}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        f"--dashboard-agent-listen-port={ports['agent']}",
        "--disable-usage-stats",
        "--block",
    ]
    if options.head:
        arguments += [
            "--head",
            f"--port={ports['gcs']}",
            f"--ray-client-server-port={ports['client']}",
            "--include-dashboard=false",
        ]
        write_atomic(options.address_file, f"{ip}:{ports['gcs']}\n".encode())
    else:
        arguments.append(f"--address={wait_for_head(options.address_file, options.timeout)}")
    ray = Path(sysconfig.get_path("scripts")) / "ray"
    role = "head" if options.head else "worker"
    print(f"{socket.gethostname()}: {role} {ip}, {options.cpus} CPUs, {options.gpus} GPUs, "
          f"ports from {ports['gcs']}", flush=True)  # fmt: skip
    os.execv(ray, [str(ray), "start", *arguments])


def drive(options: argparse.Namespace) -> int:
    """Wait for the head, then `coevo run` in this process, joined to it. Its exit code."""
    from coevo import cli
    from coevo.stop import STOP

    STOP.listen()  # a signal while Python starts up must not end the process by default
    _environment(address_of(options.interface), options.interface)
    with suppress(ImportError):  # told by the run itself
        importlib.import_module("coevo.session")  # takes seconds: meanwhile Ray starts
    os.environ["RAY_ADDRESS"] = wait_for_head(options.address_file, options.timeout)
    return cli.main(["run", str(options.config)])


def main(argv: Sequence[str] | None = None) -> int:
    from coevo.cli import EXIT_STOPPED

    top = argparse.ArgumentParser(prog="python -m coevo.launcher", description=__doc__)
    roles = top.add_subparsers(dest="role", required=True)
    for name in ("node", "drive"):
        role = roles.add_parser(name)
        role.add_argument("--address-file", type=Path, required=True)
        role.add_argument("--interface")
        role.add_argument("--timeout", type=float, default=300.0)
    node_parser, drive_parser = roles.choices["node"], roles.choices["drive"]
    node_parser.add_argument("--head", action="store_true")
    node_parser.add_argument("--job", type=int, required=True)
    node_parser.add_argument("--temp", required=True)
    node_parser.add_argument("--cpus", type=int, required=True)
    node_parser.add_argument("--gpus", type=int, required=True)
    node_parser.add_argument("--object-store", type=int, required=True)
    drive_parser.add_argument("config", type=Path)
    options = top.parse_args(argv)
    try:
        if options.role == "drive":
            return drive(options)
        node(options)
    except LaunchError as error:
        print(f"coevo: {error}", file=sys.stderr)
    return EXIT_STOPPED


if __name__ == "__main__":
    sys.exit(main())
