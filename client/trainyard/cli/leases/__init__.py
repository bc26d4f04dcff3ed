"""Commands for nodes, leases, their waiting list and calendars."""
