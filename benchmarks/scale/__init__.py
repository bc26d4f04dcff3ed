"""A large cluster on one machine: a thousand nodes and ten thousand jobs, real processes."""
