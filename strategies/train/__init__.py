"""Training itself: `python -m strategies.train` is one rank. Everything here may import torch."""
