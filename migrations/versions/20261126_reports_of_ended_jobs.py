"""reports that are written when a job has ended"""

import sqlalchemy as sa
from alembic import op

revision = "20261126_reports_of_ended_jobs"
down_revision = "20261126_tags_of_jobs"


def upgrade() -> None:
    op.add_column(
        "jobs",
        sa.Column(
            "report_when_ended", sa.Boolean(), server_default=sa.text("false"), nullable=False
        ),
    )
    op.add_column("jobs", sa.Column("report_sha256", sa.String(64), nullable=True))
    op.create_index(
        "ix_jobs_report_when_ended",
        "jobs",
        ["id"],
        sqlite_where=sa.text("report_when_ended"),
        postgresql_where=sa.text("report_when_ended"),
    )
