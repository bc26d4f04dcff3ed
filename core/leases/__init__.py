"""Life of leases: take, charge, end, wait for one."""
