"""The harness process: protocol, launcher, limits."""
