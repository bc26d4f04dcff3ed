"""what a lease is charged that was given back early"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261202_lease_charges"
down_revision = "20261201_retention"


def upgrade() -> None:
    op.add_column("leases", sa.Column("charged_end", UtcDateTime(timezone=True), nullable=True))
    op.add_column(
        "leases",
        sa.Column("refund_if_rebooked", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
