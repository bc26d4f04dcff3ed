"""clean-ups of leases, and tags"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261205_cleanups"
down_revision = "20261204_attempt_parts"

RESULTS = "result IN ('planned', 'spared', 'removed', 'skipped', 'restored', 'lost')"


def upgrade() -> None:
    op.add_column("leases", sa.Column("tags", sa.JSON(), nullable=False, server_default="[]"))
    op.create_table(
        "cleanups",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("selector", sa.JSON(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(timezone=True), nullable=False),
        sa.Column("expires_at", UtcDateTime(timezone=True), nullable=False),
        sa.Column("applied_by", sa.Text(), nullable=True),
        sa.Column("applied_at", UtcDateTime(timezone=True), nullable=True),
        sa.Column("undone_by", sa.Text(), nullable=True),
        sa.Column("undone_at", UtcDateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["made_by"], ["users.id"], name="fk_cleanups_made_by_users"),
        sa.ForeignKeyConstraint(["applied_by"], ["users.id"], name="fk_cleanups_applied_by_users"),
        sa.ForeignKeyConstraint(["undone_by"], ["users.id"], name="fk_cleanups_undone_by_users"),
        sa.PrimaryKeyConstraint("id", name="pk_cleanups"),
    )
    op.create_table(
        "cleanup_rows",
        sa.Column("cleanup_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("refund_hours", sa.Integer(), nullable=False),
        sa.Column("result", sa.String(length=20), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("restored_as", sa.Text(), nullable=True),
        sa.CheckConstraint(RESULTS, name="result"),
        sa.ForeignKeyConstraint(
            ["cleanup_id"], ["cleanups.id"], name="fk_cleanup_rows_cleanup_id_cleanups"
        ),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.id"], name="fk_cleanup_rows_lease_id_leases"
        ),
        sa.ForeignKeyConstraint(
            ["restored_as"], ["leases.id"], name="fk_cleanup_rows_restored_as_leases"
        ),
        sa.PrimaryKeyConstraint("cleanup_id", "position", name="pk_cleanup_rows"),
    )
    op.create_index("ix_cleanup_rows_lease_id", "cleanup_rows", ["lease_id"])
