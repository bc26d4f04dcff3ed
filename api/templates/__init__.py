"""Templates that people keep, share and start from."""
