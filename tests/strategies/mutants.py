"""Techniques with one thing broken."""

MUTANTS = {}
