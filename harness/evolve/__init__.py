"""Harness evolution: records, parts, one engine."""
