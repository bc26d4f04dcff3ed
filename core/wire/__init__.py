"""Messages between the processes: the node protocol, and doorbells."""
