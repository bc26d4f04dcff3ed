"""Ranks of one attempt on this node: launch, watch, judge, end."""
