"""The database schema, step by step (alembic)."""
