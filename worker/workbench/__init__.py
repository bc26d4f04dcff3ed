"""Workbenches on this node: the porter inside their sandbox, and the carrier outside it."""
