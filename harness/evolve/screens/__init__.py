"""Screens: cheap checks that a candidate must pass."""
