"""Messages between the processes: the node protocol, trees of workspaces, and doorbells."""
