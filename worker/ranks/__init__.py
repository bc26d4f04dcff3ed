"""Ranks of one attempt on this node: start, watch, judge, end."""
