"""A process: its settings, and the platform's conditions that it keeps: time, read-only, claims."""
