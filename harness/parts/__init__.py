"""The general built-in parts, one concept a file; see docs/harness.md for all of them."""
