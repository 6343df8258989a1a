"""Every known failure of a run has a message and an exit code; the rest are bugs."""

from __future__ import annotations

import errno

import pytest

from coevo.session import failure
from coevo.stack import StackError
from coevo.stop import StopRequested
from coevo.training import PublishError
from rollout.policy.base import EngineDied
from rollout.pool import RolloutError
from trainer.errors import TrainerError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StackError("does not fit"), 2),
        (PublishError("differs"), 70),
        (EngineDied("gone"), 75),
        (RolloutError("too few scored"), 75),
        (TrainerError("rank 1 died", 1), 75),
        (StopRequested("SIGUSR1"), 75),
        (KeyboardInterrupt(), 75),
        (OSError(errno.ENOSPC, "No space left on device"), 75),
        (OSError(errno.EIO, "Input/output error"), 75),
        (BaseExceptionGroup("", [EngineDied("gone"), TrainerError("so am I")]), 75),
    ],
)
def test_a_known_failure_has_its_code(error: BaseException, code: int) -> None:
    told = failure(error)
    assert told is not None
    assert told[0]
    assert told[1] == code


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("a bug"),
        OSError(errno.ENOENT, "No such file or directory"),
        BaseExceptionGroup("", [EngineDied("gone"), ZeroDivisionError("a bug")]),
    ],
)
def test_what_is_not_known_is_a_bug(error: BaseException) -> None:
    assert failure(error) is None


def test_phases_side_by_side_that_fail_alike_are_told_once() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    told = failure(BaseExceptionGroup("", [full, OSError(full.errno, full.strerror)]))
    assert told is not None
    assert told[0].count("No space left") == 1
