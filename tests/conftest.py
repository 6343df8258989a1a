"""Puts this directory on the path, so that tests of several packages share its helper modules."""

import os

from hypothesis import settings

# Ray reads it when it is imported; on a busy machine its own 30 s are too short.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")

# A deadline a case is a timed assertion, and a loaded machine breaks it.
settings.register_profile("coevo", deadline=None)
settings.load_profile("coevo")
