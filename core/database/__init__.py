"""Connection to the database, and its schema."""
