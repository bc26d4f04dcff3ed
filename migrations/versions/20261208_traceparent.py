"""the trace that a job's submission belongs to"""

import sqlalchemy as sa
from alembic import op

revision = "20261208_traceparent"
down_revision = "20261206_agendas"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("traceparent", sa.Text(), nullable=True))
