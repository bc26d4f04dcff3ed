"""find what is live among all that is over: the scheduler asks once a second"""

from alembic import op

revision = "20261123_live_rows"
down_revision = "20261122_waiting_and_missing"


def upgrade() -> None:
    op.create_index("ix_attempts_state", "attempts", ["state"], unique=False)
    op.create_index("ix_occupancy_hold_end", "occupancy", ["hold_end"], unique=False)
