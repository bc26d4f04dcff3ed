"""models to start from: uploaded Hugging Face checkpoints"""

import sqlalchemy as sa
from alembic import op

import core.database.database

revision = "20261126_models"
down_revision = "20261125_studies"


def upgrade() -> None:
    op.create_table(
        "models",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("has_tokenizer", sa.Boolean(), nullable=False),
        sa.Column("deleted_at", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_models_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
        sa.UniqueConstraint("user_id", "name", name=op.f("uq_models_user_id")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("model_id", sa.Text(), nullable=True))
        batch_op.create_foreign_key(
            batch_op.f("fk_jobs_model_id_models"), "models", ["model_id"], ["id"]
        )
