"""Real runs under a real Slurm: engines, Ray over two nodes, requeue, resume."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from job_under_test import JobUnderTest
from throwaway_slurm import ThrowawaySlurm

ROOT = Path(__file__).resolve().parents[2]
