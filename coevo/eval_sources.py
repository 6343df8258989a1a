"""Where a harness or a policy is from: a run at a round, or a directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coevo.errors import InputError
from coevo.eval_pairs import AtRound, RunPairs
from harness.bundle import MANIFEST, Bundle, load


@dataclass(frozen=True)
class Source:
    """`text` as it was given. pairs, at: of a run; path: a directory of another kind."""

    text: str
    path: Path
    pairs: RunPairs | None = None
    at: AtRound | None = None

    @property
    def round(self) -> int | None:
        return self.at.round if self.at is not None else None

    def in_run(self) -> tuple[RunPairs, AtRound] | None:
        return (self.pairs, self.at) if self.pairs is not None and self.at is not None else None


def source(text: str, marker: str, what: str) -> Source:
    """RUN, RUN@ROUND or a directory that holds the file `marker`. what: named in the message.

    Raises InputError or RunError where it is none of them."""
    whole = Path(text)
    if (whole / marker).is_file():
        return Source(text, whole)
    name, sign, word = (text, "", "last") if whole.is_dir() else _parted(text)
    path = Path(name)
    if path.is_dir() and not (path / "config.yaml").is_file():
        raise InputError(
            f"{what} {text!r}: {path} is neither a run (it has no config.yaml) nor a directory with "
            f"{marker}; give RUN, RUN@ROUND or such a directory"
        )
    pairs = RunPairs(path)
    if sign and not word:
        raise InputError(f"{what} {text!r}: a round is missing behind the @; give a number or last")
    return Source(text, path, pairs, pairs.at(word))


def _parted(text: str) -> tuple[str, str, str]:
    name, sign, word = text.rpartition("@")
    return (name, sign, word) if sign else (text, "", "last")


def harness_bundle(found: Source) -> Bundle:
    """Raises InputError or BundleError where it is damaged."""
    run = found.in_run()
    if run is None:
        return load(found.path)
    pairs, at = run
    if at.variants > 1:
        raise InputError(
            f"{found.text}: {at.variants} harnesses served side by side in round {at.round}; export "
            f"one of them from {pairs.dir.store} with `coevo harness`, or name another round"
        )
    return pairs.bundle(at.harness_id)


def harness_source(text: str) -> Source:
    return source(text, MANIFEST, "--harness")


def policy_source(text: str) -> Source:
    return source(text, "config.json", "--policy")
