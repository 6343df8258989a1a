"""Selectors: which tasks a round judges on."""
