"""what the preflight of an attempt found"""

import sqlalchemy as sa
from alembic import op

revision = "20261210_preflights"
down_revision = "20261209_lease_timetable"


def upgrade() -> None:
    with op.batch_alter_table("attempts") as batch_op:
        batch_op.add_column(sa.Column("preflight", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("attempts") as batch_op:
        batch_op.drop_column("preflight")
