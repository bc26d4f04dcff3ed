"""Workspaces: folders of people that outlive leases; their trees, quota, writers, snapshots."""
