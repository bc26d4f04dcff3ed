"""Sharing of things with people, groups and everybody: read-only, one copy."""
