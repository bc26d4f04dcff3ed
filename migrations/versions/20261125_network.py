"""hosts that programs may reach, and the use that attempts made of them"""

import sqlalchemy as sa
from alembic import op

revision = "20261125_network"
down_revision = "20261125_outputs_of_nodes"


def upgrade() -> None:
    op.create_table(
        "network_lists",
        sa.Column("owner", sa.String(length=20), nullable=False),
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("hosts", sa.JSON(), nullable=False),
        sa.CheckConstraint("owner IN ('node_class', 'lab')", name=op.f("ck_network_lists_owner")),
        sa.PrimaryKeyConstraint("owner", "owner_id", name=op.f("pk_network_lists")),
    )
    op.add_column("attempt_parts", sa.Column("hosts", sa.JSON(), nullable=True))
