"""things that their owners let others read"""

import sqlalchemy as sa
from alembic import op

revision = "20261126_sharing"
down_revision = "20261125_dataset_origin"


def upgrade() -> None:
    op.create_table(
        "shares",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("thing_id", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("audience", sa.String(length=20), nullable=False),
        sa.Column("audience_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "audience IN ('person', 'group', 'everybody')", name=op.f("ck_shares_audience")
        ),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name=op.f("fk_shares_owner_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shares")),
        sa.UniqueConstraint(
            "kind", "thing_id", "audience", "audience_id", name=op.f("uq_shares_kind")
        ),
    )
    op.create_index(op.f("ix_shares_owner_id"), "shares", ["owner_id"])
