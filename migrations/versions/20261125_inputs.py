"""the inputs of a script's job, by their exact files"""

import sqlalchemy as sa
from alembic import op

revision = "20261125_inputs"
down_revision = "20261124_slots"


def upgrade() -> None:
    op.create_table(
        "job_inputs",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source_id", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('dataset', 'model', 'checkpoint')", name=op.f("ck_job_inputs_kind")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_inputs_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "position", name=op.f("pk_job_inputs")),
    )
