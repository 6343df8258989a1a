"""The cluster section refuses what no job could be; placement and Slurm's answers are read right."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from coevo.cluster import ClusterConfig
from coevo.config import load_config
from coevo.launcher import (
    PORT_BASE,
    LaunchError,
    address_of,
    first_port,
    free_ports,
    wait_for_head,
)
from coevo.placement import booked_cpus, misplaced
from coevo.slurm import Node, _node, unplaceable
from coevo.stop import Stop, StopRequested

QUICKSTART = Path(__file__).resolve().parents[3] / "configs" / "quickstart.yaml"


@pytest.mark.parametrize(
    ("given_time", "seconds", "text"),
    [
        ("1:30:00", 5400, "1:30:00"),
        ("2-00:00:00", 172_800, "2-00:00:00"),
        (43_200, 43_200, "12:00:00"),
    ],
)
def test_a_time_limit_is_text_or_the_seconds_that_yaml_makes_of_it(
    given_time: object, seconds: int, text: str
) -> None:
    config = ClusterConfig.model_validate({"time": given_time})
    assert (config.seconds, config.time) == (seconds, text)


def test_a_time_limit_on_the_command_line_needs_no_quotes() -> None:
    config = load_config(QUICKSTART, ["cluster.time=4:00:00"])
    assert config.cluster is not None
    assert config.cluster.seconds == 14_400


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"time": "90 minutes"}, "expected H:MM:SS"),
        ({"time": "0:04:00"}, "asked to stop as it starts"),
        ({"container": "docker:x"}, "expected none, apptainer:IMAGE or pyxis:IMAGE"),
        ({"container": "apptainer:"}, "expected none, apptainer:IMAGE or pyxis:IMAGE"),
        ({"mounts": ["/data"]}, "container is 'none'"),
        ({"scratch": "tmp"}, "not an absolute path"),
        ({"scratch": "/local/" + "s" * 30}, "room for 28"),
        ({"partition": "a b"}, "partition"),
        ({"partition": 'a"; rm -rf ~"'}, "partition"),
        ({"modules": ["cuda; true"]}, "modules"),
        ({"interface": "ib0 eth0"}, "interface"),
        ({"extra": ["constraint=h100"]}, "expected options such as --constraint=h100"),
        ({"extra": ["--x\n#SBATCH --y"]}, "expected options"),
        ({"mem": "lots"}, "mem"),
        ({"gpus": 4}, "Extra inputs"),
    ],
)
def test_what_no_job_could_be_is_refused(section: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said.replace("(", r"\(")):
        ClusterConfig.model_validate(section)


def test_a_run_that_fits_its_allocation_has_no_complaint() -> None:
    config = load_config(QUICKSTART)
    assert booked_cpus(config) == 3.0  # engine 0.5, two workers 0.25 each, one rank of two threads
    assert misplaced(config, ClusterConfig(cpus_per_task=3)) == []


@pytest.mark.parametrize(
    ("overrides", "cluster", "said"),
    [
        ([], {"cpus_per_task": 2}, "books 3 CPUs"),
        (
            ["trainer.threads_per_rank=4"],
            {"cpus_per_task": 3, "nodes": 2},
            "a rank lies on one node",
        ),
        (
            ["policy.engine.device=cuda", "trainer.device=cuda", "policy.engine.tensor_parallel=2"],
            {"gpus_per_node": 2},
            "books 3 GPUs (engine 2, trainer 1, disaggregated)",
        ),
        (
            ["policy.engine.device=cuda", "trainer.device=cuda", "policy.engine.tensor_parallel=2"],
            {"gpus_per_node": 1, "nodes": 3},
            "an engine lies on one node",
        ),
    ],
)
def test_a_run_that_ray_would_never_place_is_refused(
    overrides: list[str], cluster: dict[str, int], said: str
) -> None:
    problems = misplaced(load_config(QUICKSTART, overrides), ClusterConfig(**cluster))
    assert len(problems) == 1
    assert said in problems[0]


def test_lines_of_sinfo_are_read() -> None:
    assert _node("n1|gpu*|64|512000|gpu:a100:4(S:0-1),gpu:h100:2,shard:8|1-12:00:00") == Node(
        "n1", "gpu", True, 64, 512_000, 6, 129_600
    )
    assert _node("n2|cpu|8|8000|(null)|infinite") == Node("n2", "cpu", False, 8, 8000, 0, None)
    assert _node("n2|debug|8|8000|gpu:1|30:00").limit_s == 1800


NODES = [Node(f"n{i}", "gpu", True, 64, 500_000, 4, 86_400) for i in range(2)] + [
    Node("c1", "cpu", False, 128, 250_000, 0, None)
]


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"partition": "gpus"}, "did you mean 'gpu'?"),
        ({"partition": "night"}, "there are: cpu, gpu"),
        ({"gpus_per_node": 8}, "no node of partition 'gpu' has more than 4"),
        ({"partition": "cpu", "gpus_per_node": 1}, "has more than 0"),
        ({"cpus_per_task": 65}, "has more than 64"),
        ({"nodes": 3}, "partition 'gpu' has 2 nodes"),
        ({"time": "2-00:00:00"}, "allows 86400 s"),
    ],
)
def test_a_job_that_slurm_would_never_start_is_refused(
    cluster: dict[str, object], said: str
) -> None:
    problems = unplaceable(ClusterConfig.model_validate(cluster), NODES)
    assert len(problems) == 1
    assert said in problems[0]
    assert unplaceable(ClusterConfig(nodes=2, gpus_per_node=4), NODES) == []


@given(st.integers(0, 2**32))
def test_every_job_gets_ports_between_rays_and_the_ephemeral_ones(job: int) -> None:
    assert 20_000 <= first_port(job) <= 31_980
    assert first_port(job) != first_port(job + 1)


def test_a_taken_port_moves_the_job_to_another_block() -> None:
    job = next(j for j in range(600) if free_ports("127.0.0.1", j)["gcs"] == first_port(j))
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", first_port(job)))
        holder.listen()
        moved = free_ports("127.0.0.1", job)
    assert moved["gcs"] != first_port(job)
    assert moved["gcs"] >= PORT_BASE


def test_an_interface_without_address_is_named_with_those_that_have_one() -> None:
    assert address_of("lo") == "127.0.0.1"
    with pytest.raises(LaunchError, match=r"'ib7' has no IPv4 address .* lo \(127.0.0.1\)"):
        address_of("ib7")


def test_a_head_that_never_came_is_infrastructure_with_the_place_to_look(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"was not written; see ray-\*.log"):
        wait_for_head(tmp_path / "address", 0.1)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        (tmp_path / "address").write_text(f"127.0.0.1:{closed.getsockname()[1]}\n")
        with pytest.raises(LaunchError, match="does not answer"):
            wait_for_head(tmp_path / "address", 0.1)


def test_a_signal_stops_the_run_before_its_next_phase_and_not_earlier(tmp_path: Path) -> None:
    stop, before = Stop(), [signal.getsignal(n) for n in (signal.SIGUSR1, signal.SIGTERM)]
    try:
        stop.listen()
        stop.check(tmp_path)
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(StopRequested, match="SIGUSR1"):
            stop.check(tmp_path)
    finally:
        for number, handler in zip((signal.SIGUSR1, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


def test_a_stop_file_stops_one_attempt(tmp_path: Path) -> None:
    (tmp_path / "STOP").touch()
    with pytest.raises(StopRequested, match="STOP"):
        Stop().check(tmp_path)
    Stop().check(tmp_path)
