"""Commands for staff: people, policies, maintenance, clean-ups, operation."""
