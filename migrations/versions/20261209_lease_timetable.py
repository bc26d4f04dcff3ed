"""when jobs of an ending lease save and are killed, as its policy had it"""

import sqlalchemy as sa
from alembic import op

revision = "20261209_lease_timetable"
down_revision = "20261208_traceparent"


def upgrade() -> None:
    for name, seconds in (("checkpoint_s", "600"), ("kill_after_s", "30")):
        op.add_column(
            "leases", sa.Column(name, sa.Integer(), nullable=False, server_default=seconds)
        )
