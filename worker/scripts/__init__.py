"""Programs of users: sandbox, launch, network between nodes, output."""
