"""Datasets, and the batches that each rank gets from them, in an order that no layout changes."""
