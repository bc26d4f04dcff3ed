"""studies: jobs that were submitted together, to be compared"""

import sqlalchemy as sa
from alembic import op

import core.database.database

revision = "20261125_studies"
down_revision = "20261124_certificates"


def upgrade() -> None:
    op.create_table(
        "studies",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.CheckConstraint("kind IN ('strong', 'weak', 'schedules')", name=op.f("ck_studies_kind")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_studies_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
    )
    with op.batch_alter_table("studies", schema=None) as batch_op:
        batch_op.create_index("ix_studies_user_id_id", ["user_id", "id"], unique=False)

    op.create_table(
        "study_jobs",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("study_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_study_jobs_job_id_jobs")),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_study_jobs_study_id_studies")
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_study_jobs")),
    )
    with op.batch_alter_table("study_jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_study_jobs_study_id"), ["study_id"], unique=False)
