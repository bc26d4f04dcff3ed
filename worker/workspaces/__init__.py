"""Workspaces on this node: restored before a program starts, and taken back while it runs."""
