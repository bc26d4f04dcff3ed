"""Programs of users: sandbox, environment, limits, output."""
