"""Administration: clean-ups of leases, nodes, unsafe settings, the audit log."""
