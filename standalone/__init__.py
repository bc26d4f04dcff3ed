"""The whole platform on one machine, as child processes."""
