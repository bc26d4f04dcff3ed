"""`trainyard prove`: checks that show on a node what a plan and a test can't; and the preflight."""
