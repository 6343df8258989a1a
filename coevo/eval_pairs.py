"""The (harness, policy) pairs of a run, named by round, as its records and files have them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from coevo.base_policy import recorded_base
from coevo.config import RunConfig
from coevo.errors import InputError
from coevo.records import Evaluation
from coevo.rundir import RunDir
from coevo.runs import Run, load_run
from harness.bundle import Bundle
from harness.store import Store, StoreError
from rollout.policy.weights import WeightsError, fingerprint_file

ADAPTER = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class AtRound:
    """What served at the start of a round; after the last one, what the run ended with. variants:
    how many harnesses served side by side, of which `harness_id` is the main one's."""

    round: int
    harness_id: str
    policy_version: int
    variants: int = 1


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """Weights that can be served. version: in its run, 0 for M_0. weights: what the engine loads (a
    file, or an adapter directory); None for M_0 and for a hosted model, where `fingerprint` says
    which model it is."""

    version: int
    fingerprint: str
    weights: Path | None = None


class RunPairs:
    """Read access to one run. Raises InputError where the run has what nobody could serve."""

    def __init__(self, path: Path) -> None:
        self.run: Run = load_run(path)
        self.dir = RunDir.open(path)

    @cached_property
    def rounds(self) -> dict[int, AtRound]:
        """Committed rounds, and the state after the last of them."""
        found = {
            r.round: AtRound(r.round, r.harness_id, r.policy_version, max(1, len(r.variants)))
            for r in self.run.rounds
        }
        if self.run.best_of_n is not None:
            found[0] = AtRound(0, self.run.best_of_n.harness_id, 0)
            return found
        file = self.run.path / "state.json"
        try:
            state = json.loads(file.read_text())
            end = AtRound(state["round"], state["harness_id"], state["policy_version"])
            found.setdefault(end.round, end)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{file} does not hold the state of a run ({error!r}); it was edited or is "
                "damaged: `coevo resume` writes it again"
            ) from error
        if not found:
            said = "".join(f"\n{problem}" for problem in self.run.problems)
            raise InputError(
                f"{self.run.path} has no committed round, so it has no pair to take; let it finish "
                f"a round with `coevo resume {self.run.path}`{said}"
            )
        return found

    def at(self, word: str) -> AtRound:
        """The round that `word` names: a number, or `last`. Raises InputError for any other."""
        known = sorted(self.rounds)
        if word == "last":
            return self.rounds[known[-1]]
        if not word.isdigit() or int(word) not in self.rounds:
            listed = f"{known[0]} to {known[-1]}" if len(known) > 1 else str(known[0])
            raise InputError(f"{self.run.path} has no round {word!r}; expected {listed}, or last")
        return self.rounds[int(word)]

    def several(self, words: str) -> list[AtRound]:
        """As `at`, comma-separated; `all` names every round."""
        if words == "all":
            return [self.rounds[number] for number in sorted(self.rounds)]
        chosen = [self.at(word.strip()) for word in words.split(",")]
        return sorted(set(chosen), key=lambda found: found.round)

    def evaluations(self, split: str) -> Iterator[Evaluation]:
        """What the run measured on a split, by round. Raises InputError naming a damaged file."""
        for file in sorted((self.run.path / split).glob("*.json")):
            try:
                yield Evaluation.from_json(json.loads(file.read_text()), str(file))
            except ValueError as error:
                raise InputError(f"{file} is damaged: {error}") from error

    def bundle(self, harness_id: str) -> Bundle:
        try:
            return Store(self.dir.store).get(harness_id)
        except StoreError as error:
            raise InputError(str(error)) from error

    def policy(self, version: int, base: str) -> PolicyFile:
        """The weights of a version, checked against what was published. base: fingerprint of M_0.

        Raises InputError where they are gone or damaged."""
        if version == 0:
            return PolicyFile(0, base)
        file = self.weights(version)
        if not file.is_file():
            raise InputError(
                f"the weights of policy version {version} of {self.run.path} are not there: retention "
                "(storage.policy_weights) deletes those of older rounds; choose another round"
            )
        marker = file.with_name(file.name + ".json")
        try:
            published = json.loads(marker.read_text())["fingerprint"]
            found = fingerprint_file(file)
        except (OSError, ValueError, KeyError, TypeError, WeightsError) as error:
            raise InputError(
                f"policy version {version} of {self.run.path} cannot be read: {error}; choose "
                "another round"
            ) from error
        if found != published:
            raise InputError(
                f"{file} is damaged: its fingerprint is {found[:12]}, {published[:12]} was "
                "published; choose another round"
            )
        adapter = file.name == ADAPTER
        return PolicyFile(version, found, file.parent if adapter else file)

    def weights(self, version: int) -> Path:
        """The file of a version from 1 on: whole weights, or those of an adapter."""
        whole = self.dir.weights(version)
        adapter = whole.with_name(ADAPTER)
        return adapter if adapter.is_file() and not whole.is_file() else whole

    @property
    def base(self) -> str | None:
        """The recorded fingerprint of M_0."""
        return recorded_base(self.run.path)


def policies(pairs: RunPairs, chosen: Sequence[AtRound], base: str) -> dict[int, PolicyFile]:
    """Version -> its weights, of the chosen rounds."""
    return {v: pairs.policy(v, base) for v in sorted({at.policy_version for at in chosen})}


def task_count(asked: int | None, config: RunConfig) -> int:
    """-n, else as the run's first and last evaluation. Raises InputError for less than 1."""
    if asked is not None and asked < 1:
        raise InputError(f"-n is {asked}; expected at least 1 task")
    return asked or config.evaluation.final or config.evaluation.episodes
