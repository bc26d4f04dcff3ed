"""Measurements behind the numbers in the docs; `make bench` runs them all."""
