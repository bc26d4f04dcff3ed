"""reports: what was said about jobs at one moment, named by its own hash"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261130_reports"
down_revision = "20261129_people"


def upgrade() -> None:
    op.create_table(
        "reports",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("made_at", UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_reports_user_id_users")),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_reports")),
    )
    op.create_index("ix_reports_user_id_made_at", "reports", ["user_id", "made_at"])
