"""The only place that decides: leases by hour block, placement, dispatch, repair."""
