"""Puts this directory on the path, so that tests of several packages share its helper modules."""

from hypothesis import settings

# A deadline a case is a timed assertion, and a loaded machine breaks it.
settings.register_profile("coevo", deadline=None)
settings.load_profile("coevo")
