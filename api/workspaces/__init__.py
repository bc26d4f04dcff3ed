"""Workspaces over HTTP, for their owners and for nodes."""
