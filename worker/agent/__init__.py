"""The loop of a node: ask the API, decide, act, and start shims."""
