"""Base of every other room: clock, errors, ids, settings, words."""
