"""Commands of workbenches."""
