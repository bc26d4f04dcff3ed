"""workspaces of people, and their snapshots"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261125_workspaces"
down_revision = "20261125_uploads"


def upgrade() -> None:
    op.create_table(
        "workspaces",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=True),
        sa.Column("snapshot_id", sa.Text(), nullable=True),
        sa.Column("writer_id", sa.Text(), nullable=True),
        sa.Column("trouble", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_workspaces_user_id_users")
        ),
        sa.ForeignKeyConstraint(
            ["writer_id"], ["attempts.id"], name=op.f("fk_workspaces_writer_id_attempts")
        ),
        sa.PrimaryKeyConstraint("user_id", name=op.f("pk_workspaces")),
        sa.UniqueConstraint("number", name=op.f("uq_workspaces_number")),
    )
    op.create_table(
        "workspace_snapshots",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("origin", sa.String(length=20), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("tree", sa.String(length=64), nullable=False),
        sa.Column("tree_size", sa.BigInteger(), nullable=False),
        sa.Column("blobs", sa.JSON(), nullable=False),
        sa.Column("left_out", sa.Integer(), server_default="0", nullable=False),
        sa.Column("taken_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "origin IN ('program', 'edit', 'restore')", name=op.f("ck_workspace_snapshots_origin")
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_workspace_snapshots_user_id_users")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workspace_snapshots")),
    )
    op.create_index("ix_workspace_snapshots_user_id_id", "workspace_snapshots", ["user_id", "id"])
    op.add_column("attempts", sa.Column("workspace_access", sa.String(length=20), nullable=True))
    op.add_column("attempts", sa.Column("workspace_snapshot_id", sa.Text(), nullable=True))
