"""Curves and logs, as they are stored."""
