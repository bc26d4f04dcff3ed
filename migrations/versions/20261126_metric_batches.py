"""metric batches: a row for all keys"""

import sqlalchemy as sa
from alembic import op

revision = "20261126_metric_batches"
down_revision = "20261126_idle_workbenches"


def upgrade() -> None:
    op.add_column("metric_chunks", sa.Column("keys", sa.Text(), nullable=True))
