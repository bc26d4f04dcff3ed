"""Several owners on one node: shares of its slots, and what keeps the owners apart."""
