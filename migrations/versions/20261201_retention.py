"""retention: which files are still named, which checkpoints are gone, who does a chore"""

import sqlalchemy as sa
from alembic import op

import core.database.database

revision = "20261201_retention"
down_revision = "20261201_deliveries"


def upgrade() -> None:
    moment = core.database.database.UtcDateTime(timezone=True)
    with op.batch_alter_table("files", schema=None) as batch_op:
        batch_op.add_column(sa.Column("named_at", moment, nullable=True))
        batch_op.add_column(sa.Column("gone_at", moment, nullable=True))
    with op.batch_alter_table("checkpoints", schema=None) as batch_op:
        batch_op.add_column(sa.Column("deleted_at", moment, nullable=True))
    op.create_table(
        "claims",
        sa.Column("chore", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("until", moment, nullable=False),
        sa.PrimaryKeyConstraint("chore", name=op.f("pk_claims")),
    )
