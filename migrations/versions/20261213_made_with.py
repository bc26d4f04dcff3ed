"""which API token a token, a session or a link was made with, and ends with"""

from alembic import op

revision = "20261213_made_with"
down_revision = "20261212_node_names"


def upgrade() -> None:
    for table in ("tokens", "links"):  # no batch: SQLite need not build the tables anew for this
        op.execute(
            f"ALTER TABLE {table} ADD COLUMN made_with TEXT "
            f"CONSTRAINT fk_{table}_made_with_tokens REFERENCES tokens (id)"
        )
    op.create_index("ix_tokens_made_with", "tokens", ["made_with"])
