"""What calls of hosted models cost, and whether a budget covers the next one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from harness.evolve.llm.config import BudgetConfig, EndpointConfig


@dataclass(frozen=True, slots=True)
class Spent:
    """Of a run or a part of one. calls: tries, failed ones included. money: in the prices' unit."""

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    money: float = 0.0

    @classmethod
    def of(
        cls, endpoint: EndpointConfig, prompt: int, completion: int, calls: int = 0, failed: int = 0
    ) -> Spent:
        """So many tokens at the endpoint's prices."""
        return cls(calls, failed, prompt, completion, endpoint.money(prompt, completion))

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(a + b for a, b in zip(_values(self), _values(other), strict=True)))

    def __sub__(self, other: Spent) -> Spent:
        return Spent(*(a - b for a, b in zip(_values(self), _values(other), strict=True)))

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def shortage(budget: BudgetConfig, used: Spent, more: Spent, where: str) -> str:
    """Why `budget` does not cover `more` beside what is `used`; "" where it does. where: its key."""
    for what, limit, have, next_ in (
        ("tokens", budget.tokens, used.tokens, more.tokens),
        ("money", budget.money, used.money, more.money),
    ):
        if limit is not None and have + next_ > limit:
            return (
                f"the next call may take {next_:g} {what}; {have:g} of the run's {limit:g} are "
                f"spent or under way ({where}.{what})"
            )
    return ""


def _values(spent: Spent) -> tuple[Any, ...]:
    return tuple(asdict(spent).values())
