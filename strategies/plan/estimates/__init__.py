"""Cost of a run before it starts: memory, arithmetic, traffic, time. Pure, torch-free."""
