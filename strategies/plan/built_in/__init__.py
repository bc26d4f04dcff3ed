"""Datasets that need no upload. Torch-free and numpy-free."""
