"""The agent proposer (Evolver): language-model sessions that edit scratch copies of the incumbent.

What the edit is (edits, kinds, files) is computed from the difference; the model's manifest says
why it was made and what it should do. Source: HarnessX §4 (Evolver).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from harness.bundle import Bundle
from harness.change import describe, summary
from harness.edit import DeleteFile, Edit, PutFile, diff
from harness.evolve.llm.briefing import (
    Anchors,
    evidence_text,
    harness_text,
    ledger_text,
    objectives_text,
    section,
    standing_text,
)
from harness.evolve.llm.roles import MAX_STEPS, chat_of, session, together
from harness.evolve.meta import edit_key
from harness.evolve.parts import Need, Part, PartFailed, Situation
from harness.evolve.proposers.scratch import Scratch, desk
from harness.evolve.records import (
    Candidate,
    Claim,
    Digest,
    Episode,
    FileChange,
    Landscape,
    Manifest,
    Objective,
    PredictedImpact,
    Signature,
)
from harness.sandbox import Sandbox
from harness.sandbox.containment import Level
from harness.tools.registry import HostTool, Input, ToolFailure, ToolRegistry


class FinishInput(Input):
    """The author's part of the manifest."""

    bucket: str = Field(description="The leading kind of the edit; one of those that `diff` shows.")
    root_cause: str = Field(min_length=10, max_length=1000, description="Why the tasks fail.")
    fix: str = Field(min_length=10, max_length=1000, description="What the edit does about it.")
    failure_evidence: tuple[str, ...] = Field(
        min_length=1, description="Names of excerpts that show the failure, such as E3."
    )
    will_unlock: tuple[str, ...] = Field((), description="Tasks that fail and would pass.")
    will_stabilise: tuple[str, ...] = Field((), description="Tasks that would pass more often.")
    at_risk: tuple[str, ...] = Field((), description="Tasks that pass now and might break.")
    why_at_risk_hold: str = Field(min_length=10, max_length=1000, description="Why they will not.")
    signature_type: Literal["component", "tool", "model_input"] = Field(
        description="How to tell that the edit is at work: a component changes an event, a tool is "
        "called, or the model reads something else."
    )
    signature_name: str = Field(description="The component's id or the tool's name.")
    expected_min_calls: int = Field(1, ge=1, description="How often at least, over all runs.")


class StopInput(Input):
    reason: str = Field(min_length=1, max_length=1000, description="Why nothing is handed in.")


@dataclass(slots=True)
class _Outcome:
    """Of one session: a candidate, or why there is none."""

    candidate: Candidate | None = None
    reason: str = "the session ended without finish"


class AgentProposer(Part):
    """`k` sessions, one candidate each at most, each for one of the objectives in turn.

    prompt: the role bundle under `prompts/`. max_steps, max_tokens: of one session (tokens read and
    written; None: only the run's budget). max_edits: told to the author; the budget screen decides.
    max_evidence: tasks shown. retry_after: as in the catalogue proposer. sandbox: where own code is
    tried.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"llm", "sandbox"})

    prompt: Literal["evolver", "single_agent"] = "evolver"
    k: int = Field(4, ge=1, le=99)
    max_steps: int = Field(60, ge=2, le=MAX_STEPS)
    max_tokens: int | None = Field(1_000_000, ge=1000)
    max_edits: int = Field(4, ge=1)
    max_evidence: int = Field(24, ge=1)
    retry_after: int | None = Field(None, ge=1)
    sandbox: Level = "auto"

    def least_tokens(self) -> int:
        return 10_000 * self.k

    async def propose(
        self, at: Situation, digest: Digest, landscape: Landscape
    ) -> tuple[Candidate, ...]:
        sandbox = Sandbox(self.sandbox, slots=min(self.k, 4))
        try:
            outcomes = await together(
                [self._session(n, at, digest, landscape, sandbox) for n in range(self.k)]
            )
        finally:
            await sandbox.close()
        out: dict[str, Candidate] = {}
        reasons = []
        for number, outcome in enumerate(outcomes, 1):
            found = outcome.candidate
            if found is not None and found.harness_id in out:
                outcome.reason = f"the same as {out[found.harness_id].candidate_id}"
            elif found is not None:
                out[found.harness_id] = found
                continue
            name = f"C-R{at.round}-{number:02d}"
            reasons.append(f"{name}: {outcome.reason}")
            await chat_of(at).drop("evolver", name, outcome.reason)
        if not out:
            raise PartFailed(f"no session handed in a candidate: {'; '.join(reasons)}")
        return tuple(out.values())

    async def revise(
        self, at: Situation, digest: Digest, landscape: Landscape, candidate: Candidate, note: str
    ) -> Candidate | None:
        """One more session, on the candidate, to do what the critic asks for."""
        number = int(candidate.candidate_id.rpartition("-")[2]) - 1
        sandbox = Sandbox(self.sandbox, slots=1)
        try:
            outcome = await self._session(
                number, at, digest, landscape, sandbox, candidate.bundle, note
            )
        finally:
            await sandbox.close()
        if outcome.candidate is None:
            what = f"revision of {candidate.candidate_id}"
            await chat_of(at).drop("evolver", what, outcome.reason)
        return outcome.candidate

    async def _session(
        self,
        number: int,
        at: Situation,
        digest: Digest,
        landscape: Landscape,
        sandbox: Sandbox,
        start: Bundle | None = None,
        note: str = "",
    ) -> _Outcome:
        anchors = Anchors()
        objective = landscape.objectives[number % len(landscape.objectives)]
        text = self._text(number, objective, at, digest, landscape, anchors, note)
        candidate_id = f"C-R{at.round}-{number + 1:02d}"
        tools = sorted(
            {name[5:] for run in at.episodes for name in run.fired if name.startswith("tool:")}
        )
        outcome = _Outcome()
        with Scratch(
            start or at.incumbent, at.incumbent, sandbox, _to_replay(at.episodes, objective), tools
        ) as scratch:
            finish = Finish(self, candidate_id, scratch, at, digest, landscape, anchors, outcome)
            registry = ToolRegistry([*desk(scratch), finish, Stop(outcome)])
            try:
                result = await session(
                    chat_of(at), "evolver", self.prompt, text, registry,
                    ends=(finish.name, Stop.name), seed=at.seed, attempt=number,
                    max_steps=self.max_steps, max_tokens=self.max_tokens,
                )  # fmt: skip
            except PartFailed as error:  # of this session only; the others may have found something
                outcome.reason = error.reason
                return outcome
        if outcome.candidate is None and result.status == "truncated":
            outcome.reason = f"{outcome.reason}: {result.reason}"
        return outcome

    def _text(
        self,
        number: int,
        objective: Objective,
        at: Situation,
        digest: Digest,
        landscape: Landscape,
        anchors: Anchors,
        note: str,
    ) -> str:
        alone = self.prompt == "single_agent"
        own = [item for item in digest.tasks if alone or item.task in objective.tasks]
        shown = own[: self.max_evidence]
        solid = [item.task for item in digest.tasks if item.verdict == "solid"]
        stable = sorted(at.memory.stable(at.incumbent.id))
        parts = [section("Evidence", evidence_text(shown, anchors))]
        if alone:
            parts.insert(0, section("What fails", objectives_text(landscape)))
        else:
            mine = objectives_text(Landscape((objective,)))
            parts.insert(0, section(f"Your objective (author {number + 1} of {self.k})", mine))
            others = Landscape(tuple(x for x in landscape.objectives if x != objective))
            parts.append(section("Left to other authors", objectives_text(others)))
        parts += [
            section("Tasks that pass", ", ".join(dict.fromkeys((*stable, *solid))) or "none"),
            section("Harness", harness_text(at.incumbent)),
            section("Edits judged before", ledger_text(at.memory)),
            section("Kinds of edit", standing_text(landscape)),
            f"At most {self.max_edits} edits (component changes).",
        ]
        if note:
            parts.append(
                "\nThe scratch copy holds your edit. The critic asks for this change, once: " + note
            )
        return "\n".join(parts)


class Finish(HostTool[FinishInput]):
    """Makes the candidate, or says what is missing."""

    name = "finish"
    description = "Hand the edit in, with its manifest. Ends the session."
    input = FinishInput

    def __init__(
        self,
        proposer: AgentProposer,
        candidate_id: str,
        scratch: Scratch,
        at: Situation,
        digest: Digest,
        landscape: Landscape,
        anchors: Anchors,
        outcome: _Outcome,
    ) -> None:
        self._proposer, self._id, self._scratch, self._at = proposer, candidate_id, scratch, at
        self._tasks = {item.task for item in digest.tasks} | {run.task for run in at.episodes}
        self._held_back = landscape.held_back
        self._anchors, self._outcome = anchors, outcome

    async def run(self, given: FinishInput) -> str:
        try:
            self._outcome.candidate = await self._candidate(given)
        except ToolFailure as failure:
            self._outcome.reason = f"the last finish was refused: {failure}"
            raise
        return f"handed in as {self._id}"

    async def _candidate(self, given: FinishInput) -> Candidate:
        incumbent = self._scratch.incumbent
        bundle, reached, _ = await self._scratch.tried()
        edits = diff(incumbent, bundle)
        kinds = summary(incumbent, bundle).kinds
        if problems := self._problems(given, bundle, edits, kinds):
            raise ToolFailure("; ".join(problems))
        claims = [Claim("instantiates", given.fix, "a replay in the sandbox ran to its end")]
        if reached:
            said = f"{reached} model inputs of a replayed episode differ"
            claims.append(Claim("reaches_model", given.fix, said))
        manifest = Manifest(
            candidate_id=self._id,
            bucket=given.bucket,
            kinds=kinds,
            edits=summary(incumbent, bundle).count,
            capability_evidence=tuple(claims),
            file_changes=_file_changes(incumbent, edits),
            predicted_impact=PredictedImpact(
                _keys(given.will_unlock), _keys(given.will_stabilise), _keys(given.at_risk)
            ),
            attribution_signature=Signature(
                given.signature_type, given.signature_name, given.expected_min_calls
            ),
            failure_evidence=tuple(self._anchors.anchor(name) for name in given.failure_evidence),
            root_cause=given.root_cause,
            fix=given.fix,
            why_at_risk_hold=given.why_at_risk_hold,
        )
        source = f"{self._proposer.prompt}:{self._id}"
        return Candidate(self._id, incumbent.id, bundle, edits, manifest, source)

    def _problems(
        self, given: FinishInput, bundle: Bundle, edits: Sequence[Edit], kinds: Sequence[str]
    ) -> list[str]:
        if not edits:
            return ["nothing differs from the incumbent; edit the bundle, or call stop"]
        problems = []
        memory, round = self._at.memory, self._at.round
        if memory.spent(edit_key(edits), round, self._proposer.retry_after):
            problems.append("this very edit was refused before")
        if held := sorted(set(kinds) & set(self._held_back)):
            problems.append(f"kinds {held} may not ship now; leave them alone")
        if given.bucket not in kinds:
            problems.append(
                f"bucket {given.bucket!r:.60} is none of the edit's kinds {list(kinds)}"
            )
        named = {*given.will_unlock, *given.will_stabilise, *given.at_risk}
        if unknown := sorted(named - self._tasks):
            problems.append(f"there are no tasks {unknown[:5]}; copy the keys")
        if not given.will_unlock and not given.will_stabilise:
            problems.append("name tasks in will_unlock or will_stabilise")
        if absent := [name for name in given.failure_evidence if name not in self._anchors]:
            problems.append(f"there are no excerpts {absent[:5]}; names look like E1")
        if given.signature_type == "component":
            own = {item.id: item.own_file for item in bundle.components}
            if given.signature_name not in own:
                problems.append(
                    f"signature: the bundle has no component {given.signature_name!r:.60}"
                )
            elif own[given.signature_name]:
                problems.append("signature: code of the bundle's own is told by model_input only")
        return problems


class Stop(HostTool[StopInput]):
    """Ends the session with nothing handed in."""

    name = "stop"
    description = "End the session without an edit."
    input = StopInput

    def __init__(self, outcome: _Outcome) -> None:
        self._outcome = outcome

    async def run(self, given: StopInput) -> str:
        self._outcome.reason = f"stopped: {given.reason}"
        return "stopped"


def _to_replay(episodes: Sequence[Episode], objective: Objective) -> Episode | None:
    """The first failed run of the objective's tasks that has a trace; else any run."""

    def worth(run: Episode) -> tuple[bool, bool, bool, str, int]:
        return (not run.trace, run.task not in objective.tasks, run.success, run.task, run.seed)

    return min((run for run in episodes if run.scored), key=worth, default=None)


def _keys(tasks: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(set(tasks)))


def _file_changes(incumbent: Bundle, edits: Sequence[Edit]) -> tuple[FileChange, ...]:
    out = []
    for edit in edits:
        match edit:
            case PutFile(path):
                action = "change" if path in incumbent.files else "add"
            case DeleteFile(path):
                action = "remove"
            case _:
                path, action = "harness.yaml", "change"
        out.append(FileChange(path, action, describe(edit)))
    return tuple(out)
