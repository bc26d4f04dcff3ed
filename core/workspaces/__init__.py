"""Workspaces: folders of people that outlive leases; their quota, writers, snapshots."""
