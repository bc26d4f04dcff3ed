"""Bytes between node and API: spool, checkpoints, cache, telemetry."""
