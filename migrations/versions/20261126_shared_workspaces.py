"""shared workspaces: what a node has seen of them"""

import sqlalchemy as sa
from alembic import op

revision = "20261126_shared_workspaces"
down_revision = "20261126_metric_batches"


def upgrade() -> None:
    op.add_column("workspaces", sa.Column("shared", sa.JSON(), nullable=True))
    op.add_column(
        "workspaces", sa.Column("shared_seen_at", sa.DateTime(timezone=True), nullable=True)
    )
