"""Proposers: from a landscape to candidates."""
