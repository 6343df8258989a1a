"""The typed configuration of a run: YAML files that compose, overrides, refusals that say why.

Importing this pulls neither torch nor Ray nor vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coevo.cluster import ClusterConfig
from coevo.policy_config import PolicyConfig
from coevo.resources_config import ResourcesConfig, StorageConfig, cannot_share
from harness.component import nearest
from harness.evolve.llm.config import LLMConfig
from rollout.config import EnvironmentConfig, RolloutConfig
from rollout.envs.factory import anchored
from rollout.task import Split
from rollout.trajectory import Role
from trainer.config import TrainerConfig

Mode = Literal["frozen", "harness", "model", "coevolve", "best_of_n"]
SinkName = Literal["wandb", "mlflow", "trackio"]
Schedule = Literal["synchronous", "pipelined"]


class ConfigError(ValueError):
    """A configuration that cannot run. `problems`: every reason, each naming its key."""

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"config {where}:\n" + "\n".join(f"- {text}" for text in self.problems))


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HarnessConfig(_Section):
    """bundle: directory of H0, relative to the file that names it."""

    bundle: str


class TasksConfig(_Section):
    """per_round tasks of the evolve split a round, each rolled out `samples` times."""

    per_round: int = Field(24, ge=1)
    samples: int = Field(4, ge=1)


class BufferConfig(_Section):
    """window: rounds kept. include: roles whose trajectories train. min_rounds: training starts
    when the buffer holds that many rounds (the paper waits for a full window). trainer_logprobs: score
    each new part by one forward pass of the trainer under M_t, before its first step. keep_rounds:
    rounds whose token data stays on disk (null: all); records of older rounds are always kept."""

    window: int = Field(4, ge=1)
    keep_rounds: int | None = Field(None, ge=1)
    max_trajectories: int = Field(100_000, ge=1)
    include: tuple[Role, ...] = ("incumbent", "candidate")
    min_rounds: int = Field(1, ge=1)
    trainer_logprobs: bool = True

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.min_rounds > self.window:
            raise ValueError(
                f"buffer.min_rounds is {self.min_rounds} but buffer.window holds only "
                f"{self.window} rounds, so training would never start; lower min_rounds"
            )
        if self.keep_rounds is not None and self.keep_rounds < self.window:
            raise ValueError(
                f"buffer.keep_rounds is {self.keep_rounds} but buffer.window trains on "
                f"{self.window} rounds; keep at least as many, or null for all"
            )
        if "heldout" in self.include:
            raise ValueError(
                "buffer.include names 'heldout': held-out episodes never train; remove it"
            )
        return self


class EvolutionConfig(_Section):
    """recipe: a name in configs/evolve or a path. every: rounds between two evolutions.

    start: first round that evolves. max_rollouts: that evolution may ask for in the whole run (None:
    no limit). llm: the language models of the recipe's roles."""

    recipe: str = "aegis_catalogue"
    every: int = Field(1, ge=1)
    start: int = Field(0, ge=0)
    max_rollouts: int | None = Field(None, ge=1)
    llm: LLMConfig | None = None


class EvaluationConfig(_Section):
    """Success on held-out tasks with the current harness and policy, after each `every` rounds.

    episodes: tasks of a round's; final: of the first and the last evaluation (None: as every round).
    repeats: runs a task, which pass@k, pass^k and the flip rate need. ends: further splits, measured
    at the first and the last evaluation alone, and their tasks. Seeds and tasks are the same each
    time, so two evaluations are paired; sampling is at `temperature`.
    """

    splits: tuple[Split, ...] = ("heldout",)
    episodes: int = Field(60, ge=1)
    final: int | None = Field(None, ge=1)
    repeats: int = Field(1, ge=1)
    ends: dict[Split, Annotated[int, Field(ge=1)]] = {}
    every: int = Field(1, ge=1)

    def sizes(self, first_or_last: bool) -> dict[Split, int]:
        """split -> tasks that an evaluation measures."""
        n = (self.final or self.episodes) if first_or_last else self.episodes
        return dict.fromkeys(self.splits, n) | (self.ends if first_or_last else {})

    @model_validator(mode="after")
    def _once(self) -> Self:
        if twice := [split for split in self.ends if split in self.splits]:
            raise ValueError(
                f"evaluation.ends names {', '.join(twice)}, which evaluation.splits measures each "
                "time; leave it out of one of the two"
            )
        return self


class BestOfNConfig(_Section):
    """Of mode best_of_n, which runs each held-out task n times and evolves nothing.

    n: how often; or match: the name of a finished run beside this one, or its directory, whose
    tokens of rollouts and evolution are then spent on repeats."""

    n: int | None = Field(None, ge=2)
    match: str | None = None


class RunConfig(_Section):
    """One run. `mode` is one switch over the same loop: frozen evolves and trains nothing.

    schedule: `pipelined` rolls the next round out while this one evolves and trains, under the harness
    and the policy of before: more work at a time, what trains is one version older.
    """

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    mode: Mode = "coevolve"
    schedule: Schedule = "synchronous"
    seed: int = Field(0, ge=0)
    rounds: int = Field(6, ge=1)
    runs_dir: str = "runs"
    environment: EnvironmentConfig = EnvironmentConfig()
    harness: HarnessConfig
    policy: PolicyConfig
    rollout: RolloutConfig = RolloutConfig()
    tasks: TasksConfig = TasksConfig()
    buffer: BufferConfig = BufferConfig()
    trainer: TrainerConfig = TrainerConfig()
    evolution: EvolutionConfig = EvolutionConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    best_of_n: BestOfNConfig = BestOfNConfig()
    storage: StorageConfig = StorageConfig()
    resources: ResourcesConfig = ResourcesConfig()
    cluster: ClusterConfig | None = None
    sinks: tuple[SinkName, ...] = ()
    project: str = "coevo"

    @property
    def evolves(self) -> bool:
        return self.mode in ("harness", "coevolve")

    @property
    def trains(self) -> bool:
        return self.mode in ("model", "coevolve")

    @property
    def colocated(self) -> bool:
        """Whether engines and trainer take turns on the same GPUs."""
        return self.resources.placement == "colocated"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.mode == "best_of_n":
            budget = self.best_of_n
            if (budget.n is None) == (budget.match is None):
                raise ValueError(
                    "mode is 'best_of_n': set exactly one of best_of_n.n (runs a held-out task) and "
                    f"best_of_n.match (a run whose tokens are matched); found "
                    f"{'neither' if budget.n is None else 'both'}"
                )
            if "heldout" not in self.evaluation.splits:
                raise ValueError(
                    "mode is 'best_of_n' but evaluation.splits has no 'heldout', whose tasks it "
                    "repeats; add it"
                )
        if self.schedule == "pipelined" and self.resources.placement == "colocated":
            raise ValueError(
                "schedule is 'pipelined' but resources.placement is 'colocated': the engines sleep "
                "while the model trains, so nothing can be rolled out meanwhile; use placement "
                "disaggregated or schedule synchronous"
            )
        if self.evolves and self.evolution.recipe == "none":
            raise ValueError(
                f"mode is {self.mode!r} but evolution.recipe is 'none'; choose a recipe of "
                "configs/evolve, or mode frozen or model"
            )
        if self.trains and self.tasks.samples < 2 and self.buffer.window < 2:
            raise ValueError(
                f"mode {self.mode!r} trains with tasks.samples 1 and buffer.window 1: every group "
                "is a singleton and its advantage is 0; raise tasks.samples to 2 or more"
            )
        if self.buffer.min_rounds > self.rounds and self.trains:
            raise ValueError(
                f"buffer.min_rounds is {self.buffer.min_rounds} but the run has {self.rounds} "
                "rounds, so it would never train; lower it or raise rounds"
            )
        if self.trains and self.policy.api is not None:
            raise ValueError(
                f"mode is {self.mode!r} but policy.api is a hosted model, which gives no token ids "
                "and log-probs to train on; use mode harness or frozen, or serve weights of your own "
                "by policy.model"
            )
        if self.trains and (problem := self._adapters_do_not_fit()):
            raise ValueError(problem)
        if self.trainer.ratio == "decoupled" and not self.buffer.trainer_logprobs:
            raise ValueError(
                "trainer.ratio is 'decoupled', which needs the trainer's own log-probs, but "
                "buffer.trainer_logprobs is false; set it to true or choose another ratio"
            )
        if self.colocated and (problem := cannot_share(self.policy, self.trainer)):
            raise ValueError(problem)
        if self.trains and self.trainer.device != self.policy.engine.device:
            raise ValueError(
                f"trainer.device is {self.trainer.device!r} and policy.engine.device is "
                f"{self.policy.engine.device!r}; both must be the same kind"
            )
        return self

    def _adapters_do_not_fit(self) -> str:
        """Why the engine cannot serve what the trainer publishes; "" where it can."""
        served, trained = self.policy.engine.lora, self.trainer.lora
        publishes = trained is not None and trained.publish == "adapter"
        if served is None and publishes:
            return (
                "trainer.lora.publish is 'adapter' but policy.engine.lora is not set; set it, or "
                "publish merged weights"
            )
        if served is not None and not publishes:
            return (
                "policy.engine.lora is set, so the engine takes adapters, but trainer.lora.publish "
                "is not 'adapter'; set it, or unset policy.engine.lora"
            )
        if served is not None and trained is not None and trained.rank > served.rank:
            return (
                f"trainer.lora.rank is {trained.rank} and policy.engine.lora.rank {served.rank}; "
                "raise the engine's"
            )
        return ""


PATH_KEYS = (("harness", "bundle"), ("policy", "model"), ("policy", "warmstart", "bundle"))
"""Keys whose relative paths are relative to the file that names them."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of `path` with `extends` composed and dotted `key=value` overrides applied.

    Raises ConfigError with every problem; unknown keys name the nearest known one.
    """
    file = Path(path)
    data = _compose(file, ())
    for override in overrides:
        _override(data, override)
    _anchor_environment(data, Path.cwd())
    return parse_config(data, str(file))


def parse_config(data: Mapping[str, Any], where: str = "") -> RunConfig:
    """A mapping as RunConfig, or ConfigError."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(where, [_say(item, data) for item in error.errors()]) from error


def dump_config(config: RunConfig) -> str:
    """YAML that `load_config` reads back to an equal configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _compose(file: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    resolved = file.resolve()
    if resolved in seen:
        chain = " -> ".join(p.name for p in (*seen, resolved))
        raise ConfigError(str(file), [f"extends runs in a circle: {chain}"])
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        known = sorted(p.name for p in file.parent.glob("*.yaml")) if file.parent.is_dir() else []
        raise ConfigError(
            str(file), [f"there is no such file{nearest(file.name, known)}"]
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(file), [f"cannot be read: {error}"]) from error
    except yaml.YAMLError as error:
        raise ConfigError(str(file), [f"is not YAML: {error}"]) from error
    if not isinstance(data, dict):
        raise ConfigError(str(file), [f"holds {type(data).__name__}; expected keys and values"])
    for keys in PATH_KEYS:
        _anchor(data, keys, file.parent)
    _anchor_environment(data, file.parent)
    bases = data.pop("extends", [])
    merged: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        merged = _merge(merged, _compose(file.parent / base, (*seen, resolved)))
    return _merge(merged, data)


def _anchor(data: dict[str, Any], keys: Sequence[str], base: Path) -> None:
    """A model id of a hub ("Qwen/Qwen3-0.6B") stays as it is: no such path exists."""
    section: Any = data
    for key in keys[:-1]:
        section = section.get(key) if isinstance(section, dict) else None
    if isinstance(section, dict) and isinstance(section.get(keys[-1]), str):
        candidate = base / section[keys[-1]]
        if candidate.exists():
            section[keys[-1]] = str(candidate.resolve())


def _anchor_environment(data: dict[str, Any], base: Path) -> None:
    section = data.get("environment")
    if isinstance(section, dict) and isinstance(section.get("name"), str):
        section["name"] = anchored(section["name"], base)


def _merge(base: dict[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in top.items():
        if isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
            out[key] = _merge(dict(out[key]), value)
        else:
            out[key] = value
    return out


def _override(data: dict[str, Any], override: str) -> None:
    key, sign, text = override.partition("=")
    if not sign or not key:
        raise ConfigError(
            override, ["an override is written key=value, for example rounds=2 or trainer.lr=1e-5"]
        )
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(override, [f"the value is not YAML: {error}"]) from error
    if isinstance(value, str):
        value = _number(value)
    section = data
    *parents, last = key.split(".")
    for name in parents:
        below = section.setdefault(name, {})
        if not isinstance(below, dict):
            raise ConfigError(override, [f"{name} is {below!r}, which has no key {last!r}"])
        section = below
    section[last] = value


def _number(text: str) -> str | float:
    """YAML 1.1 reads 1e-5 as text; people mean the number."""
    try:
        return float(text)
    except ValueError:
        return text


def _say(item: Any, data: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        known = _fields_at(item["loc"][:-1])
        return f"{where}: there is no such key{nearest(item['loc'][-1], known)}"
    if item["type"] == "missing":
        return f"{where}: is missing"
    message = str(item["msg"]).removeprefix("Value error, ")
    given = item.get("input")
    if item["type"] == "value_error" or isinstance(given, dict):
        return f"{where}: {message}" if where else message
    return f"{where}: is {given!r}; {message}"


def _fields_at(path: Sequence[Any]) -> list[str]:
    model: Any = RunConfig
    for part in path:
        field = getattr(model, "model_fields", {}).get(str(part))
        if field is None:
            return []
        options = [field.annotation, *getattr(field.annotation, "__args__", ())]
        model = next((o for o in options if hasattr(o, "model_fields")), None)
    return list(getattr(model, "model_fields", {}))
