"""The typed errors of the trainer."""

from __future__ import annotations


class TrainerError(RuntimeError):
    """The trainer cannot go on. `rank` names the rank that failed, where one did."""

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[type[TrainerError], tuple[str, int | None]]:
        # Exceptions with an own signature lose their fields when Ray pickles them.
        return type(self), (str(self.args[0]), self.rank)


class BatchError(TrainerError, ValueError):
    """A training batch that would train wrongly: shapes differ, a log-prob or advantage is missing."""


class CheckpointError(TrainerError):
    """A checkpoint that is damaged, incomplete, or of another layout; the message names the file."""


class PublishError(TrainerError):
    """Published weights that cannot be written or do not read back as they were written."""
