"""Comparisons of results: with one rank, with other jobs, with what was planned. Torch-free."""
