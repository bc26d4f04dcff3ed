"""Optimizers: the update of weights from gradients."""
