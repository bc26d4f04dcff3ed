"""jobs and agendas with locked and open fields, and what people started from them"""

import sqlalchemy as sa
from alembic import op

revision = "20261126_templates"
down_revision = "20261126_sharing"


def upgrade() -> None:
    op.create_table(
        "templates",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("open", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_templates_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_templates")),
        sa.UniqueConstraint("user_id", "name", name=op.f("uq_templates_user_id")),
    )
    op.create_table(
        "template_starts",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("template_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["template_id"], ["templates.id"], name=op.f("fk_template_starts_template_id_templates")
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_template_starts_user_id_users")
        ),
        sa.PrimaryKeyConstraint("subject", name=op.f("pk_template_starts")),
    )
    op.create_index(op.f("ix_template_starts_template_id"), "template_starts", ["template_id"])
    op.create_index(op.f("ix_template_starts_user_id"), "template_starts", ["user_id"])
