"""people's own tokenizers, and the jobs that train with them"""

import sqlalchemy as sa
from alembic import op

revision = "20261125_tokenizers"
down_revision = "20261125_network"


def upgrade() -> None:
    op.create_table(
        "tokenizers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("vocabulary_size", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_tokenizers_job_id_jobs")),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_tokenizers_user_id_users")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokenizers")),
        sa.UniqueConstraint("user_id", "name", name=op.f("uq_tokenizers_user_id")),
    )
    op.add_column("jobs", sa.Column("tokenizer_id", sa.Text(), nullable=True))
