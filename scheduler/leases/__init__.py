"""Leases that begin, end, fail over, or are offered."""
