"""Training: what to train, how it is split, the loop that does it. Imports nothing of ours."""
