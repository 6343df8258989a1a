"""Environments, one a file or package."""
