"""passes to workbenches in the browser"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261126_workbenches"
down_revision = "20261126_courses"


def upgrade() -> None:
    op.create_table(
        "workbench_passes",
        sa.Column("ticket_sha256", sa.String(length=64), nullable=False),
        sa.Column("cookie_sha256", sa.String(length=64), nullable=True),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("token_id", sa.Text(), nullable=False),
        sa.Column("made_at", UtcDateTime(), nullable=False),
        sa.Column("ticket_ends_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_workbench_passes_job_id_jobs")
        ),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name=op.f("fk_workbench_passes_token_id_tokens")
        ),
        sa.PrimaryKeyConstraint("ticket_sha256", name=op.f("pk_workbench_passes")),
        sa.UniqueConstraint("cookie_sha256", name=op.f("uq_workbench_passes_cookie_sha256")),
    )
