"""agendas: jobs that run in one lease, in their order"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261206_agendas"
down_revision = "20261205_cleanups"


def upgrade() -> None:
    op.create_table(
        "agendas",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=False),
        sa.Column("side_by_side", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("on_failure", sa.String(length=20), nullable=False),
        sa.Column("created_at", UtcDateTime(timezone=True), nullable=False),
        sa.CheckConstraint("on_failure IN ('go_on', 'stop')", name="on_failure"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_agendas_user_id_users"),
        sa.ForeignKeyConstraint(["lease_id"], ["leases.id"], name="fk_agendas_lease_id_leases"),
        sa.PrimaryKeyConstraint("id", name="pk_agendas"),
    )
    op.create_index("ix_agendas_user_id_id", "agendas", ["user_id", "id"])
    op.create_index("ix_agendas_lease_id", "agendas", ["lease_id"])
    op.create_table(
        "agenda_jobs",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("agenda_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_agenda_jobs_job_id_jobs"),
        sa.ForeignKeyConstraint(
            ["agenda_id"], ["agendas.id"], name="fk_agenda_jobs_agenda_id_agendas"
        ),
        sa.PrimaryKeyConstraint("job_id", name="pk_agenda_jobs"),
    )
    op.create_index("ix_agenda_jobs_agenda_id", "agenda_jobs", ["agenda_id"])
