"""Plan of a run before it starts: its costs and whether it fits. Pure, torch-free."""
