"""What runs on each GPU node: agent, shim, launchers, spool, telemetry."""
