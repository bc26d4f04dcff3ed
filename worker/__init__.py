"""Processes of a GPU node: agent, shim, launchers, spool, telemetry."""
