"""the node that left an artifact, and whether a script has output on a node"""

import sqlalchemy as sa
from alembic import op

revision = "20261125_outputs_of_nodes"
down_revision = "20261125_workspaces"


def upgrade() -> None:
    op.add_column(
        "artifacts", sa.Column("position", sa.Integer(), server_default="0", nullable=False)
    )
    op.add_column(
        "attempt_parts",
        sa.Column("has_output", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )
