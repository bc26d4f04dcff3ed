"""hours that a lease has forfeited: charged for unless somebody else has them"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261215_forfeited_hours"
down_revision = "20261214_report_deleted_at"


def upgrade() -> None:
    op.add_column("leases", sa.Column("charged_s", sa.Integer(), nullable=True))
    for name in ("forfeited_end", "forfeited_at"):
        op.add_column("leases", sa.Column(name, UtcDateTime(timezone=True), nullable=True))
    op.create_index("ix_leases_forfeited_end", "leases", ["forfeited_end"])
    op.execute(
        "UPDATE leases SET forfeited_end = hold_end, forfeited_at = cancelled_at "
        "WHERE counts AND cancelled_at IS NOT NULL"
    )
    op.execute(
        "UPDATE leases SET forfeited_end = charged_end, forfeited_at = COALESCE(ended_at, hold_end)"
        " WHERE counts AND cancelled_at IS NULL AND kind <> 'walk_in' AND charged_end > hold_end"
    )
