"""What can go wrong with a language model, by what the round must do about it.

An `EvolutionInfraError` ends the round without a verdict; a `PartFailed` ends the step, and the
round is a no-op with that reason. Messages never hold a key.
"""

from __future__ import annotations

from harness.evolve.parts import EvolutionInfraError, PartFailed


class LLMSetupError(ValueError):
    """Nothing was asked yet and nothing can be: a key or the SDK is missing."""


class BudgetTooSmall(LLMSetupError):
    """The budget would not last for two rounds; said before anything is spent."""


class EndpointError(EvolutionInfraError):
    """No endpoint of the role answered. The round has no verdict; resume it later."""


class BudgetExhausted(PartFailed):
    """The run's budget of tokens or money does not cover the next call."""


class ContextExceeded(PartFailed):
    """The question is longer than any of the role's models can read."""


class MalformedOutput(PartFailed):
    """The answer could not be read, nor could the one after the complaint."""
