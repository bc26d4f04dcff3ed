"""leases of some slots of a node: holds are counted, and no longer exclude each other"""

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "20261124_slots"
down_revision = "20261123_first_release"

COUNTED = ("leases", "offers", "occupancy", "waitlist")

POSTGRESQL = """
CREATE FUNCTION one_holder() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    in_all integer;
    fit integer;
    held bigint;
BEGIN
    IF NOT NEW.live OR NEW.kind = 'down' THEN
        RETURN NEW;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        IF OLD.live AND OLD.kind <> 'down' AND NEW.node_id = OLD.node_id
            AND NEW.num_slots IS NOT DISTINCT FROM OLD.num_slots
            AND NEW.hold_start >= OLD.hold_start AND NEW.hold_end <= OLD.hold_end
        THEN
            RETURN NEW;
        END IF;
    END IF;
    -- With a snapshot that is older than the lock the sum below would miss holds.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'occupancy is only written under READ COMMITTED'
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    SELECT slots INTO in_all FROM nodes WHERE id = NEW.node_id FOR NO KEY UPDATE;
    fit := in_all;
    IF NEW.num_slots IS NOT NULL THEN
        SELECT in_all - count(*) INTO fit FROM node_slots
        WHERE node_id = NEW.node_id AND state = 'quarantined';
    END IF;
    SELECT max(sums.slots) INTO held FROM (
        SELECT (
            SELECT sum(coalesce(other.num_slots, in_all)) FROM occupancy AS other
            WHERE other.node_id = NEW.node_id AND other.live AND other.id <> NEW.id
            AND other.hold_start <= moments.at AND other.hold_end > moments.at
        ) AS slots
        FROM (
            SELECT NEW.hold_start AS at
            UNION
            SELECT hold_start FROM occupancy
            WHERE node_id = NEW.node_id AND live AND id <> NEW.id
            AND hold_start > NEW.hold_start AND hold_start < NEW.hold_end
            AND hold_end > NEW.hold_start
        ) AS moments
    ) AS sums;
    IF coalesce(held, 0) + coalesce(NEW.num_slots, in_all) > fit THEN
        RAISE EXCEPTION 'one_holder: % of the % slots of % are held', held, fit, NEW.node_id
            USING ERRCODE = 'exclusion_violation', CONSTRAINT = 'one_holder', TABLE = 'occupancy';
    END IF;
    RETURN NEW;
END $$
"""

SQLITE = """
SELECT RAISE(ABORT, 'one_holder') WHERE EXISTS (
    SELECT 1
    FROM (
        SELECT NEW.hold_start AS at
        UNION
        SELECT hold_start FROM occupancy
        WHERE node_id = NEW.node_id AND live AND id IS NOT NEW.id
        AND hold_start > NEW.hold_start AND hold_start < NEW.hold_end
        AND hold_end > NEW.hold_start
    ) AS moments
    JOIN nodes ON nodes.id = NEW.node_id
    WHERE coalesce(NEW.num_slots, nodes.slots) + (
        SELECT coalesce(sum(coalesce(other.num_slots, nodes.slots)), 0) FROM occupancy AS other
        WHERE other.node_id = NEW.node_id AND other.live AND other.id IS NOT NEW.id
        AND other.hold_start <= moments.at AND other.hold_end > moments.at
    ) > nodes.slots - CASE WHEN NEW.num_slots IS NULL THEN 0 ELSE (
        SELECT count(*) FROM node_slots
        WHERE node_slots.node_id = NEW.node_id AND node_slots.state = 'quarantined'
    ) END
);
"""

WIDENS = """
NOT (OLD.live AND OLD.kind <> 'down' AND NEW.node_id = OLD.node_id
AND NEW.num_slots IS OLD.num_slots
AND NEW.hold_start >= OLD.hold_start AND NEW.hold_end <= OLD.hold_end)
"""


def upgrade() -> None:
    op.add_column("nodes", sa.Column("slots", sa.Integer(), server_default="1", nullable=False))
    op.execute(
        "UPDATE nodes SET slots = coalesce((SELECT CAST(hardware->>'slots' AS integer) "
        "FROM node_classes WHERE name = nodes.class_name), 1)"
    )
    _make_slots()
    op.execute(
        "ALTER TABLE nodes ADD COLUMN sharing varchar(20) DEFAULT 'none' NOT NULL "
        "CONSTRAINT ck_nodes_sharing CHECK (sharing IN ('none', 'recipes', 'full'))"
    )
    for table in COUNTED:  # written out: SQLite would copy the table for a constraint of its own
        op.execute(
            f"ALTER TABLE {table} ADD COLUMN num_slots integer "
            f"CONSTRAINT ck_{table}_num_slots CHECK (num_slots > 0)"
        )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE occupancy DROP CONSTRAINT one_holder")
        op.execute(POSTGRESQL)
        op.execute(
            "CREATE TRIGGER one_holder BEFORE INSERT OR UPDATE ON occupancy "
            "FOR EACH ROW EXECUTE FUNCTION one_holder()"
        )
        return
    for moment, when in (("INSERT", "1"), ("UPDATE", WIDENS)):
        op.execute(f"DROP TRIGGER one_holder_{moment.lower()}")
        op.execute(
            f"CREATE TRIGGER one_holder_{moment.lower()} BEFORE {moment} ON occupancy "
            f"WHEN NEW.live AND NEW.kind <> 'down' AND {when} BEGIN {SQLITE} END"
        )


def _make_slots() -> None:
    """Make the rows of all nodes' slots; an active or ending lease has all slots of its node."""
    made = op.create_table(
        "node_slots",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("slot", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("device_uuid", sa.Text(), server_default="", nullable=False),
        sa.Column("link_group", sa.Integer(), nullable=True),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("set_by", sa.Text(), nullable=True),
        sa.Column("lease_id", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('ready', 'dirty', 'quarantined')", name=op.f("ck_node_slots_state")
        ),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.id"], name=op.f("fk_node_slots_lease_id_leases")
        ),
        sa.ForeignKeyConstraint(
            ["node_id"], ["nodes.id"], name=op.f("fk_node_slots_node_id_nodes")
        ),
        sa.PrimaryKeyConstraint("node_id", "slot", name=op.f("pk_node_slots")),
    )
    op.create_index(op.f("ix_node_slots_lease_id"), "node_slots", ["lease_id"])
    bind = op.get_bind()
    nodes = sa.table(
        "nodes",
        sa.column("id"),
        sa.column("slots"),
        sa.column("clean", sa.Boolean()),
        sa.column("inventory", sa.JSON()),
        sa.column("unfit_slots", sa.JSON()),
    )
    leases = sa.table("leases", sa.column("id"), sa.column("node_id"), sa.column("state"))
    held = sa.select(leases.c.node_id, leases.c.id).where(leases.c.state.in_(("active", "ending")))
    lease_on = {node_id: lease_id for node_id, lease_id in bind.execute(held)}
    rows = [row for node in bind.execute(sa.select(nodes)) for row in _slots_of(node, lease_on)]
    if rows:
        bind.execute(sa.insert(made), rows)
    op.execute("ALTER TABLE nodes DROP COLUMN unfit_slots")


def _slots_of(node: sa.Row[Any], lease_on: Mapping[str, str]) -> Iterator[dict[str, object]]:
    gpus = {gpu["index"]: gpu for gpu in node.inventory.get("gpus", ())}
    for slot in range(node.slots):
        gpu, is_unfit = gpus.get(slot, {}), slot in node.unfit_slots
        yield {
            "node_id": node.id,
            "slot": slot,
            "device_uuid": gpu.get("uuid", ""),
            "state": "quarantined" if is_unfit else "ready" if node.clean else "dirty",
            "reason": gpu.get("reason", "") if is_unfit else "",
            "set_by": node.id if is_unfit else None,
            "lease_id": lease_on.get(node.id),
        }
