"""what an attempt was asked for while it runs: a profile, a memory snapshot"""

import sqlalchemy as sa
from alembic import op

revision = "20261127_requests"
down_revision = "20261126_models"


def upgrade() -> None:
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("request", sa.JSON(), nullable=True))
