"""booking policies by version, and their windows"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261150_policies"
down_revision = "20261130_reports"


def upgrade() -> None:
    op.create_table(
        "policies",
        sa.Column("policy_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("applied_by", sa.Text(), nullable=False),
        sa.Column("applied_at", UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["applied_by"], ["users.id"], name="fk_policies_applied_by_users"),
        sa.PrimaryKeyConstraint("policy_id", "version", name="pk_policies"),
    )
    op.create_index(
        "uq_policies_active",
        "policies",
        ["policy_id"],
        unique=True,
        postgresql_where=sa.text("active"),
        sqlite_where=sa.text("active"),
    )
    op.create_table(
        "windows",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("policy_id", sa.Text(), nullable=False),
        sa.Column("pools", sa.JSON(), nullable=False),
        sa.Column("starts_at", UtcDateTime(timezone=True), nullable=False),
        sa.Column("ends_at", UtcDateTime(timezone=True), nullable=False),
        sa.Column("opens_at", UtcDateTime(timezone=True), nullable=True),
        sa.Column("from_document", sa.Boolean(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(timezone=True), nullable=False),
        sa.CheckConstraint("starts_at < ends_at", name="time"),
        sa.ForeignKeyConstraint(["created_by"], ["users.id"], name="fk_windows_created_by_users"),
        sa.PrimaryKeyConstraint("id", name="pk_windows"),
    )
    op.create_index("ix_windows_policy_id", "windows", ["policy_id"])
