"""A method as a recipe: which part stands in each slot, with its parameters; checked before use."""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.component import nearest
from harness.evolve.catalogue import CatalogueError
from harness.evolve.drift import DriftTest
from harness.evolve.parts import (
    NEEDS,
    Acceptor,
    Analyst,
    Critic,
    Director,
    Part,
    Proposer,
    Router,
    Screen,
    Selector,
)

RECIPES = Path(__file__).resolve().parents[2] / "configs" / "evolve"

PARTS: dict[str, dict[str, str]] = {
    "selector": {"batch": "harness.evolve.selectors.batch:Batch"},
    "analyst": {
        "rules": "harness.evolve.analysts.rules:Rules",
        "llm": "harness.evolve.analysts.llm:LLMAnalyst",
    },
    "director": {
        "catalogue": "harness.evolve.directors.catalogue:CatalogueDirector",
        "llm": "harness.evolve.directors.llm:LLMDirector",
    },
    "proposer": {
        "catalogue": "harness.evolve.proposers.catalogue:CatalogueProposer",
        "agent": "harness.evolve.proposers.agent:AgentProposer",
    },
    "critic": {
        "rules": "harness.evolve.critics.rules:RulesCritic",
        "llm": "harness.evolve.critics.llm:LLMCritic",
    },
    "screens": {
        "manifest": "harness.evolve.screens.static:ManifestComplete",
        "canonical": "harness.evolve.screens.static:CanonicalForm",
        "budget": "harness.evolve.screens.static:EditBudget",
        "build": "harness.evolve.screens.static:Build",
        "handbook": "harness.evolve.screens.static:Handbook",
        "leakage": "harness.evolve.screens.leakage:Leakage",
        "leakage_llm": "harness.evolve.screens.leakage_llm:LeakageLLM",
        "protected": "harness.evolve.screens.protected:Protected",
        "smoke": "harness.evolve.screens.dynamic:Smoke",
        "landed": "harness.evolve.screens.dynamic:Landed",
    },
    "acceptor": {
        "paired": "harness.evolve.acceptors.paired:Paired",
        "literal_seesaw": "harness.evolve.acceptors.literal_seesaw:LiteralSeesaw",
        "revert": "harness.evolve.acceptors.revert:RevertOnLoss",
    },
    "router": {
        "single": "harness.evolve.routers.single:Single",
        "isolated": "harness.evolve.routers.isolated:Isolated",
    },
}
"""slot -> name in a recipe -> class."""

SLOTS = tuple(PARTS)

DEFAULTS = {"critic": "rules"}
"""slot -> the part that stands there where a recipe that evolves names none."""


class RecipeError(ValueError):
    """A recipe that cannot run. `problems`: every reason, each naming its slot or field."""

    def __init__(self, where: str, problems: Collection[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"recipe {where}:\n" + "\n".join(f"- {text}" for text in self.problems))


@dataclass(frozen=True, slots=True)
class Parts:
    """A recipe's parts, built."""

    selector: Selector
    analyst: Analyst
    director: Director
    proposer: Proposer
    critic: Critic
    screens: tuple[Screen, ...]
    acceptor: Acceptor
    router: Router

    def all(self) -> tuple[Part, ...]:
        """Every part, the screens last."""
        slots = [getattr(self, slot) for slot in SLOTS if slot != "screens"]
        return (*slots, *self.screens)  # type: ignore[arg-type]


class Recipe(BaseModel):
    """One method. A slot is a part's name, or `{name: {parameter: value}}`; all slots or none
    (then evolution is off); `critic` is `rules` where it is left out.

    patience: P, rounds in a row without a ship before evolution stops. retry_after: rounds that a
    stop lasts before one more is tried, if the policy has changed since the last try; a policy
    that does not change stops evolution for good. min_actionability: α, below which a round is a
    no-op. min_pairs: share of asked pairs that must survive infrastructure errors. order: whose
    first candidate is confirmed first: `gain`, the select draw's, ties by the critic's ranking;
    `ranking`, the critic's. drift_every: rounds between two drift tests of the incumbents against
    the best harness before (0: never).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: Literal[1] = Field(alias="schema")
    name: str
    about: str = ""
    selector: str | dict[str, dict[str, Any]] | None = None
    analyst: str | dict[str, dict[str, Any]] | None = None
    director: str | dict[str, dict[str, Any]] | None = None
    proposer: str | dict[str, dict[str, Any]] | None = None
    critic: str | dict[str, dict[str, Any]] | None = None
    screens: tuple[str | dict[str, dict[str, Any]], ...] = ()
    acceptor: str | dict[str, dict[str, Any]] | None = None
    router: str | dict[str, dict[str, Any]] | None = None
    patience: int = Field(3, ge=1)
    retry_after: int = Field(2, ge=1)
    min_actionability: float = Field(0.3, ge=0, le=1)
    min_pairs: float = Field(0.8, gt=0, le=1)
    order: Literal["gain", "ranking"] = "gain"
    drift_every: int = Field(0, ge=0)
    drift: DriftTest = DriftTest()

    @property
    def off(self) -> bool:
        """Whether the recipe evolves nothing."""
        return not any(getattr(self, slot) for slot in SLOTS)


def load_recipe(name_or_path: str | os.PathLike[str]) -> tuple[Recipe, Parts | None]:
    """The recipe of that file, or of that name in `configs/evolve`, with its parts (None: off).

    Raises RecipeError with every problem: unknown recipe, key, part or parameter, each naming the
    nearest. Files that a part names are relative to the recipe's directory.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        known = sorted(item.stem for item in RECIPES.glob("*.yaml"))
        if str(name_or_path) not in known:
            raise RecipeError(
                str(name_or_path), [f"there is no such recipe{nearest(name_or_path, known)}"]
            )
        path = RECIPES / f"{name_or_path}.yaml"
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        known = [item.name for item in path.parent.glob("*.yaml")]
        raise RecipeError(
            str(path), [f"there is no such file{nearest(path.name, known)}"]
        ) from error
    except yaml.YAMLError as error:
        raise RecipeError(str(path), [f"not YAML: {error}"]) from error
    return parse_recipe(data, base=path.parent, where=str(path))


def parse_recipe(data: object, base: Path, where: str = "") -> tuple[Recipe, Parts | None]:
    """As `load_recipe`, from a mapping; `base`: what files of parts are relative to."""
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        fields = ["schema" if name == "schema_" else name for name in Recipe.model_fields]
        raise RecipeError(where, _say(error, "", fields)) from error
    if recipe.off:
        return recipe, None
    problems: list[str] = []
    built: dict[str, Any] = {}
    for slot in SLOTS:
        spec = getattr(recipe, slot) or DEFAULTS.get(slot)
        if slot == "screens":
            built[slot] = tuple(_build(slot, item, base, problems) for item in recipe.screens)
        elif spec is None:
            problems.append(f"{slot}: missing; one of {', '.join(PARTS[slot])}")
        else:
            built[slot] = _build(slot, spec, base, problems)
    if problems:
        raise RecipeError(where or recipe.name, problems)
    return recipe, Parts(**built)


def check_needs(recipe: Recipe, parts: Parts | None, available: Collection[str]) -> None:
    """Raises RecipeError naming every part whose needs `available` (names of NEEDS) does not meet."""
    if parts is None:
        return
    slots: list[tuple[str, Any]] = [
        (slot, getattr(parts, slot)) for slot in SLOTS if slot != "screens"
    ]
    slots += [("screens", screen) for screen in parts.screens]
    problems = [
        f"{slot}: {type(part).__name__} needs {need} ({NEEDS[need]}), which this run does not have"
        for slot, part in slots
        for need in sorted(part.needs - set(available))
    ]
    if problems:
        raise RecipeError(recipe.name, problems)


def _build(
    slot: str, spec: str | Mapping[str, Mapping[str, Any]], base: Path, problems: list[str]
) -> Any:
    if isinstance(spec, str):
        spec = {spec: {}}
    if len(spec) != 1:
        problems.append(f"{slot}: {sorted(spec)} must name one part")
        return None
    ((name, params),) = spec.items()
    if name not in PARTS[slot]:
        problems.append(f"{slot}: there is no part {name!r}{nearest(name, PARTS[slot])}")
        return None
    module, _, cls_name = PARTS[slot][name].partition(":")
    cls: type[Part] = getattr(importlib.import_module(module), cls_name)
    try:
        return cls.model_validate(params, context={"base": base})
    except ValidationError as error:
        problems += _say(error, f"{slot}.{name}", list(cls.model_fields))
    except CatalogueError as error:
        problems.append(f"{slot}.{name}: {error}")
    return None


def _say(error: ValidationError, where: str, known: list[str]) -> list[str]:
    out = []
    for item in error.errors(include_url=False, include_context=False):
        name = ".".join([where, *map(str, item["loc"])]).strip(".")
        if item["type"] == "extra_forbidden":
            out.append(f"{name}: unknown{nearest(item['loc'][-1], known)}")
        elif item["type"] == "missing":
            out.append(f"{name}: missing")
        else:
            out.append(f"{name} = {item['input']!r:.100}: {item['msg']}")
    return out
