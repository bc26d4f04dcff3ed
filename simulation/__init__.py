"""Replay of recorded workloads and of a course through the scheduler's own functions."""
