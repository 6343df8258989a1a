"""The harness process: evolved code runs here and nowhere else."""

from harness.sandbox.inprocess import run_inprocess
from harness.sandbox.launcher import Ran, Sandbox
from harness.sandbox.limits import Limits

__all__ = ["Limits", "Ran", "Sandbox", "run_inprocess"]
