"""since when a job waits, and since when a node no longer reports an attempt"""

import sqlalchemy as sa
from alembic import op

import core.database.database

revision = "20261122_waiting_and_missing"
down_revision = "20261121_first_tables"


def upgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("queued_at", core.database.database.UtcDateTime(timezone=True), nullable=True)
        )

    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "missing_since", core.database.database.UtcDateTime(timezone=True), nullable=True
            )
        )
        batch_op.create_index(batch_op.f("ix_attempts_lease_id"), ["lease_id"], unique=False)
