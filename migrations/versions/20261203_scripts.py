"""scripts of users' own: their code, their secrets, and the code that a job runs"""

import sqlalchemy as sa
from alembic import op

import core.database.database

revision = "20261203_scripts"
down_revision = "20261202_lease_charges"


def upgrade() -> None:
    op.create_table(
        "code_archives",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("paths", sa.JSON(), nullable=False),
        sa.Column("unpacked_size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["sha256"], ["files.sha256"], name=op.f("fk_code_archives_sha256_files")
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_code_archives_user_id_users")
        ),
        sa.PrimaryKeyConstraint("user_id", "sha256", name=op.f("pk_code_archives")),
    )
    op.create_table(
        "secrets",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("updated_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_secrets_user_id_users")),
        sa.PrimaryKeyConstraint("user_id", "name", name=op.f("pk_secrets")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("code_sha256", sa.String(length=64), nullable=True))
        batch_op.create_foreign_key(
            batch_op.f("fk_jobs_code_sha256_files"), "files", ["code_sha256"], ["sha256"]
        )
