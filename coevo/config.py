"""The typed configuration of a run: YAML files that compose, overrides, refusals that say why.

Importing this pulls neither torch nor Ray nor vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.component import nearest
from rollout.config import EnvironmentConfig, RolloutConfig
from rollout.policy.config import VLLMEngineConfig
from rollout.task import Split
from rollout.trajectory import Role
from trainer.config import TrainerConfig
from trainer.warmstart_config import WarmstartConfig

Mode = Literal["frozen", "harness", "model", "coevolve"]


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


class EngineConfig(_Section):
    """Of the policy engine; `rollout.policy.config.VLLMEngineConfig` documents the fields.

    max_model_len, when unset, follows rollout.max_context + rollout.max_new_tokens.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    kv_cache_bytes: int = Field(256 << 20, ge=1 << 20)
    max_num_seqs: int = Field(128, ge=1)
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    enforce_eager: bool = True
    prefix_caching: bool = True
    batching: Literal["serial", "continuous"] = "serial"
    tensor_parallel: int = Field(1, ge=1)
    threads: int = Field(1, ge=1)
    start_timeout_s: float = Field(600.0, gt=0)
    call_timeout_s: float = Field(600.0, gt=0)

    def resolved(self, model: str, max_model_len: int, seed: int) -> VLLMEngineConfig:
        return VLLMEngineConfig(
            model=model, max_model_len=max_model_len, seed=seed, **self.model_dump()
        )


class PolicyConfig(_Section):
    """The task model M_0: a Hugging Face directory (`model`), or one made on first use (`warmstart`)."""

    model: str | None = None
    warmstart: WarmstartConfig | None = None
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.model is None) == (self.warmstart is None):
            raise ValueError(
                "set exactly one of policy.model (a model directory) and policy.warmstart "
                f"(make a small one); found {'both' if self.model else 'neither'}"
            )
        return self


class TasksConfig(_Section):
    """per_round tasks of the evolve split a round, each rolled out `samples` times."""

    per_round: int = Field(24, ge=1)
    samples: int = Field(4, ge=1)


class BufferConfig(_Section):
    """window: rounds kept. include: roles whose trajectories train. min_rounds: training starts
    when the buffer holds that many rounds (the paper waits for a full window). trainer_logprobs: score
    each new part by one forward pass of the trainer under M_t, before its first step."""

    window: int = Field(4, ge=1)
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
        if "heldout" in self.include:
            raise ValueError(
                "buffer.include names 'heldout': held-out episodes never train; remove it"
            )
        return self


class EvolutionConfig(_Section):
    """recipe: a name in configs/evolve or a path. every: rounds between two evolutions.

    start: first round that evolves. tasks: evolve-split tasks a candidate is judged on, drawn
    anew each round (0: the round's own)."""

    recipe: str = "aegis_catalogue"
    every: int = Field(1, ge=1)
    start: int = Field(0, ge=0)
    tasks: int = Field(0, ge=0)


class EvaluationConfig(_Section):
    """Success on held-out tasks with the current harness and policy, after each `every` rounds.

    episodes: a round's; final: of the first and the last evaluation (None: as every round). Seeds
    and tasks are the same each time, so two evaluations are paired; sampling is at `temperature`.
    """

    splits: tuple[Split, ...] = ("heldout",)
    episodes: int = Field(60, ge=1)
    final: int | None = Field(None, ge=1)
    every: int = Field(1, ge=1)


class ResourcesConfig(_Section):
    """What Ray may use on this machine: cores (null: all), object store bytes."""

    num_cpus: int | None = Field(None, ge=1)
    object_store_bytes: int = Field(256 << 20, ge=78 << 20)


class RunConfig(_Section):
    """One run. `mode` is one switch over the same loop: frozen evolves and trains nothing."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    mode: Mode = "coevolve"
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
    resources: ResourcesConfig = ResourcesConfig()

    @property
    def evolves(self) -> bool:
        return self.mode in ("harness", "coevolve")

    @property
    def trains(self) -> bool:
        return self.mode in ("model", "coevolve")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
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
        if self.trains and self.trainer.device != self.policy.engine.device:
            raise ValueError(
                f"trainer.device is {self.trainer.device!r} and policy.engine.device is "
                f"{self.policy.engine.device!r}; both must be the same kind"
            )
        return self


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
