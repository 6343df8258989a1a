"""household: an ALFWorld-compatible text world in pure Python (no engine, no downloads)."""

from rollout.envs.household.env import HouseholdEnv

__all__ = ["HouseholdEnv"]
