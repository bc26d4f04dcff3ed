"""Curves and logs, stored and live."""
