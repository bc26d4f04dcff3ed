"""Metrics, log lines, measurements and the result of a run."""
