"""Training jobs before they run: what can be asked for, and what it costs. Torch-free."""
