"""(task, harness, policy) -> trajectory."""
