"""Nodes, and the protocol that their workers speak."""
