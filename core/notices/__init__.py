"""Notices to people: their events, their words and their delivery."""
