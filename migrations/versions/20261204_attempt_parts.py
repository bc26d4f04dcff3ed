"""an attempt has a part on each of its nodes, with slots; checkpoints that several nodes bring"""

import json

import sqlalchemy as sa
from alembic import op

import core.database.database
from core.wire.messages import Phase

revision = "20261204_attempt_parts"
down_revision = "20261203_scripts"

PHASES = ", ".join(f"'{phase}'" for phase in Phase)


def upgrade() -> None:
    op.create_table(
        "attempt_parts",
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=False),
        sa.Column("slots", sa.JSON(), nullable=False),
        sa.Column("phase", core.database.database.EnumText(Phase), nullable=True),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("missing_since", core.database.database.UtcDateTime(), nullable=True),
        sa.Column("exit", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("lost", sa.Text(), nullable=True),
        sa.Column("files_kept", sa.Boolean(), nullable=False),
        sa.Column("ended_at", core.database.database.UtcDateTime(), nullable=True),
        sa.CheckConstraint(
            f"phase IS NULL OR phase IN ({PHASES})", name=op.f("ck_attempt_parts_phase")
        ),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_attempt_parts_attempt_id_attempts")
        ),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.id"], name=op.f("fk_attempt_parts_lease_id_leases")
        ),
        sa.ForeignKeyConstraint(
            ["node_id"], ["nodes.id"], name=op.f("fk_attempt_parts_node_id_nodes")
        ),
        sa.PrimaryKeyConstraint("attempt_id", "position", name=op.f("pk_attempt_parts")),
    )
    op.create_index(op.f("ix_attempt_parts_lease_id"), "attempt_parts", ["lease_id"])
    op.create_index("ix_attempt_parts_node_id_ended_at", "attempt_parts", ["node_id", "ended_at"])
    op.create_table(
        "checkpoint_parts",
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_checkpoint_parts_attempt_id_attempts")
        ),
        sa.PrimaryKeyConstraint("attempt_id", "step", "position", name=op.f("pk_checkpoint_parts")),
    )
    # Until now every attempt had one node. One that runs keeps the slots that its ranks have.
    op.execute(
        "INSERT INTO attempt_parts (attempt_id, position, node_id, lease_id, slots, phase, boot_id, "
        "missing_since, exit, files_kept, ended_at) SELECT id, 0, node_id, lease_id, '[]', "
        "CASE state WHEN 'assigned' THEN NULL WHEN 'exited' THEN 'exited' ELSE 'running' END, boot_id, "
        "missing_since, exit, files_kept, ended_at FROM attempts"
    )
    connection = op.get_bind()
    attempts, jobs, parts = (
        sa.table("attempts", sa.column("id"), sa.column("job_id"), sa.column("state")),
        sa.table("jobs", sa.column("id"), sa.column("plan", sa.JSON())),
        sa.table("attempt_parts", sa.column("attempt_id"), sa.column("slots", sa.JSON())),
    )
    live = sa.select(attempts.c.id, jobs.c.plan).join(jobs, jobs.c.id == attempts.c.job_id)
    for attempt_id, plan in connection.execute(live.where(attempts.c.state != "exited")).all():
        document = json.loads(plan) if isinstance(plan, str) else plan
        slots = list(range(document["ranks_per_node"]))
        connection.execute(
            parts.update().where(parts.c.attempt_id == attempt_id).values(slots=slots)
        )
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_index("ix_attempts_node_state")
        batch_op.drop_column("boot_id")
        batch_op.drop_column("missing_since")
        batch_op.add_column(sa.Column("rendezvous", sa.JSON(none_as_null=True), nullable=True))
        batch_op.add_column(
            sa.Column("prepared_at", core.database.database.UtcDateTime(), nullable=True)
        )
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.add_column(sa.Column("peer_address", sa.Text(), server_default="", nullable=False))
