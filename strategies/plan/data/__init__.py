"""Datasets as files: what may stand in them, and how they become tokens and images. Torch-free."""
