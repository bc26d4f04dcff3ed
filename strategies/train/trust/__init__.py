"""Checks that ranks can trust each other, and that a layout trains like one rank."""
