"""Bytes between node and API: spool, checkpoints, inventory, telemetry."""
