"""The `cluster:` section of a configuration: what a Slurm job of the run asks for.

Says where a run is computed, never what: it may change between two attempts of one run.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

SOCKET_LIMIT = 43
"""Longest temporary directory of Ray, in characters: its sockets' paths end at 107 bytes."""

_WORD = r"^[A-Za-z0-9][A-Za-z0-9_.+:@/-]*$"
_CONTAINER = re.compile(r"^(none|(apptainer|pyxis):\S.*)$")
_TIME = re.compile(r"^(?:(?P<d>\d+)-)?(?P<h>\d+):(?P<m>[0-5]?\d):(?P<s>[0-5]?\d)$")


def _time(value: Any) -> Any:
    """YAML reads an unquoted 1:30:00 as a number of base 60: seconds."""
    if isinstance(value, int) and not isinstance(value, bool):
        hours, rest = divmod(value, 3600)
        return f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return value


Word = Annotated[str, Field(pattern=_WORD)]


class ClusterConfig(BaseModel):
    """One Slurm job. Amounts are a node's unless said otherwise; None leaves the site's default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    nodes: int = Field(1, ge=1)
    gpus_per_node: int = Field(0, ge=0)
    cpus_per_task: int = Field(4, ge=1, description="Cores of a node; Ray gets exactly these.")
    mem: str | None = Field(
        None,
        pattern=r"^\d+[KMGT]?$",
        description="Memory of a node, for example 64G; 0: all of it.",
    )
    exclusive: bool = Field(False, description="No other job on the nodes.")
    time: Annotated[str, BeforeValidator(_time)] = Field(
        "1:00:00", description="H:MM:SS or D-H:MM:SS; a plain number is seconds."
    )
    signal_lead_s: int = Field(
        300, ge=10, description="How long before the limit the run is asked to stop; one phase."
    )
    max_restarts: int = Field(
        3, ge=1, description="Restarts in a row without a finished phase, then the job gives up."
    )
    container: str = Field("none", description="none, apptainer:IMAGE or pyxis:IMAGE.")
    mounts: tuple[str, ...] = Field(
        (), description="Further directories the container sees; the run's own are mounted always."
    )
    modules: tuple[Word, ...] = Field((), description="Loaded in this order, before venv.")
    venv: str | None = Field(
        None, description="Environment that holds coevo; None: the one that submits."
    )
    interface: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]{1,15}$",
        description="Network interface of Ray, NCCL and Gloo, for example ib0; None: the first.",
    )
    scratch: str = Field("/tmp", description="A node's own fast directory; short, not shared.")
    start_timeout_s: int = Field(300, ge=10, description="For all nodes to join Ray.")
    extra: tuple[str, ...] = Field(
        (), description="Further options of sbatch, for example --constraint=h100."
    )

    @property
    def seconds(self) -> int:
        """The time limit."""
        found = _TIME.match(self.time)
        assert found is not None  # checked below
        d, h, m, s = (int(x or 0) for x in found.group("d", "h", "m", "s"))
        return ((d * 24 + h) * 60 + m) * 60 + s

    @property
    def image(self) -> tuple[str, str] | None:
        """(apptainer | pyxis, image), or None outside a container."""
        kind, _, image = self.container.partition(":")
        return None if kind == "none" else (kind, image)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not _TIME.match(self.time):
            raise ValueError(f"time is {self.time!r}; expected H:MM:SS or D-H:MM:SS")
        if self.seconds <= self.signal_lead_s:
            raise ValueError(
                f"signal_lead_s is {self.signal_lead_s} but the job lasts {self.seconds} s "
                f"(time {self.time}): it would be asked to stop as it starts; lower signal_lead_s "
                "or raise time"
            )
        if not _CONTAINER.match(self.container):
            raise ValueError(
                f"container is {self.container!r}; expected none, apptainer:IMAGE or pyxis:IMAGE"
            )
        if self.mounts and self.image is None:
            raise ValueError("mounts are given but container is 'none'; remove one of them")
        for path in (self.scratch, *self.mounts):
            if not PurePosixPath(path).is_absolute() or any(c in path for c in ",:\n"):
                raise ValueError(
                    f"{path!r} is not an absolute path without comma, colon and line break"
                )
        room = SOCKET_LIMIT - len("/r4294967295.99")
        if len(self.scratch) > room:
            raise ValueError(
                f"scratch has {len(self.scratch)} characters ({self.scratch}); Ray's sockets leave "
                f"room for {room}: choose a shorter directory, or a short link to it"
            )
        for option in self.extra:
            if not option.startswith("--") or "\n" in option:
                raise ValueError(
                    f"extra holds {option!r}; expected options such as --constraint=h100"
                )
        return self

    def cpus(self) -> int:
        """Of the whole job."""
        return self.nodes * self.cpus_per_task

    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node
