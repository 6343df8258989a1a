"""The loop and the command line: the only package that knows all others."""

__version__ = "0.1.0"
