"""Checkpoints: written aside, verified, read in any layout."""
