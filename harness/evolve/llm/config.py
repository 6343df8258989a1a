"""Which language model plays which role of evolution, and what a run may spend on it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from harness.component import nearest

Role = Literal["digester", "planner", "evolver", "critic", "leakage"]
ROLES: tuple[Role, ...] = get_args(Role)
DEFAULT = "default"
"""Stands in `roles` for every role that is not named there."""


def _plain_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an http(s) address is expected, for example http://localhost:8000/v1")
    if parts.username or parts.password or parts.query:
        raise ValueError(
            "holds credentials or a query, which would be written into records; "
            "put the key in an environment variable and name it in api_key_env"
        )
    return url


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EndpointConfig(_Section):
    """One OpenAI-compatible endpoint: a hosted API, a vLLM server, or the policy's own server.

    api_key_env: the environment variable that holds the key (None: the endpoint wants none).
    price_in, price_out: money per million prompt and completion tokens. timeout_s: of one call.
    max_retries: further tries after a failure that may pass. structured: how a JSON answer is asked
    for; `none` leaves it to the prompt. tool_choice: `required` forces a call at every turn of a
    role with tools. seed: whether the round's seed is sent along. extra_body: more fields of the
    request, as the server documents them.
    """

    base_url: Annotated[str, AfterValidator(_plain_url)]
    model: str = Field(min_length=1)
    api_key_env: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    price_in: float = Field(0.0, ge=0)
    price_out: float = Field(0.0, ge=0)
    timeout_s: float = Field(120.0, gt=0)
    max_retries: int = Field(4, ge=0, le=20)
    structured: Literal["json_schema", "json_object", "none"] = "json_schema"
    tool_choice: Literal["auto", "required"] = "auto"
    seed: bool = False
    extra_body: dict[str, Any] = Field(default_factory=dict)

    def money(self, prompt_tokens: int, completion_tokens: int) -> float:
        """What a call of that many tokens costs, in the unit of the prices."""
        return (prompt_tokens * self.price_in + completion_tokens * self.price_out) / 1e6


class BudgetConfig(_Section):
    """Of a run, over all roles: tokens (prompt and completion), and money in the prices' unit.

    None: no limit. A limit on money needs prices."""

    tokens: int | None = Field(None, ge=1)
    money: float | None = Field(None, gt=0)


class LLMConfig(_Section):
    """Endpoints by name, and for each role the endpoints to try, best first.

    roles: of `ROLES`, or `default` for all others. concurrency: calls at the same time.
    temperature, max_tokens: of every call; max_tokens bounds the completion, thinking included.
    """

    endpoints: dict[str, EndpointConfig] = Field(min_length=1)
    roles: dict[str, tuple[str, ...]] = Field(min_length=1)
    budget: BudgetConfig = BudgetConfig()
    concurrency: int = Field(4, ge=1, le=256)
    temperature: float = Field(0.7, ge=0, le=2)
    max_tokens: int = Field(4096, ge=16)

    @model_validator(mode="after")
    def _wired(self) -> Self:
        for role, names in self.roles.items():
            if role not in (*ROLES, DEFAULT):
                raise ValueError(f"roles: there is no role {role!r}{nearest(role, ROLES)}")
            if not names:
                raise ValueError(f"roles.{role}: names no endpoint")
            for name in names:
                if name not in self.endpoints:
                    raise ValueError(
                        f"roles.{role}: there is no endpoint {name!r}{nearest(name, self.endpoints)}"
                    )
        missing = [role for role in ROLES if role not in self.roles]
        if missing and DEFAULT not in self.roles:
            raise ValueError(
                f"roles: {', '.join(missing)} have no endpoint; name one each, or one for "
                f"{DEFAULT!r}"
            )
        if self.budget.money is not None:
            free = sorted(
                name for name, one in self.endpoints.items() if not one.price_in + one.price_out
            )
            if len(free) == len(self.endpoints):
                raise ValueError(
                    f"budget.money is {self.budget.money:g} but no endpoint has a price; set "
                    f"price_in and price_out of {', '.join(free)}, or limit tokens instead"
                )
        return self

    def of(self, role: Role) -> tuple[str, ...]:
        """Names of the role's endpoints, best first."""
        return self.roles.get(role) or self.roles[DEFAULT]
