"""Workbenches: the way between people and the programs that they sit in front of."""
