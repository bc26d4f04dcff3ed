"""Bytes on their way to the API: spool, checkpoints, artifacts."""
