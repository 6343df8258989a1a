"""Analysts: from episodes to evidence."""
