"""Training: the spec, its split over ranks, and the training loop.

Imports no other package of ours.
"""
