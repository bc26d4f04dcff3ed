"""The loop of a node: tell the API what it has and does, decide, act, and start shims."""
