"""Courses as bundles: their one file format, and their dates. Pure."""
