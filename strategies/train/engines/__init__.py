"""Engines that own the forward pass, the backward pass and the update of a rank."""
