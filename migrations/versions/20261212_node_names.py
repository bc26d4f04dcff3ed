"""names of nodes that differ in case alone are one"""

import sqlalchemy as sa
from alembic import op

revision = "20261212_node_names"
down_revision = "20261211_doors"


def upgrade() -> None:
    op.create_index("ix_nodes_folded_name", "nodes", [sa.text("lower(name)")], unique=True)
