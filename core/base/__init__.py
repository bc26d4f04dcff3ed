"""Base of every other room: clock, errors, ids, reason codes, words."""
