"""The checks of a node, one in each file; each takes a Bench and returns a Finding."""
