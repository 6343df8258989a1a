"""Tools: a registry with JSON schemas, and host tools that work in a task's own directory."""
