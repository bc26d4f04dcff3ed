"""a hold that is extended is counted in the added hours only

A slot that is out of service now was in use in hours that are over: counting them again refused
extensions for which there was room.
"""

from alembic import op

revision = "20261125_extended_holds"
down_revision = "20261125_inputs"

POSTGRESQL = """
CREATE OR REPLACE FUNCTION one_holder() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    in_all integer;
    fit integer;
    held bigint;
    kept_from timestamptz;
    kept_to timestamptz;
BEGIN
    IF NOT NEW.live OR NEW.kind = 'down' THEN
        RETURN NEW;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        IF OLD.live AND OLD.kind <> 'down' AND NEW.node_id = OLD.node_id
            AND NEW.num_slots IS NOT DISTINCT FROM OLD.num_slots
        THEN
            IF NEW.hold_start >= OLD.hold_start AND NEW.hold_end <= OLD.hold_end THEN
                RETURN NEW;
            END IF;
            kept_from := OLD.hold_start;
            kept_to := OLD.hold_end;
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
            SELECT coalesce(sum(coalesce(other.num_slots, in_all)), 0) FROM occupancy AS other
            WHERE other.node_id = NEW.node_id AND other.live AND other.id <> NEW.id
            AND other.hold_start <= moments.at AND other.hold_end > moments.at
        ) AS slots
        FROM (
            SELECT NEW.hold_start AS at
            UNION
            SELECT kept_to WHERE kept_to > NEW.hold_start AND kept_to < NEW.hold_end
            UNION
            SELECT hold_start FROM occupancy
            WHERE node_id = NEW.node_id AND live AND id <> NEW.id
            AND hold_start > NEW.hold_start AND hold_start < NEW.hold_end
            AND hold_end > NEW.hold_start
        ) AS moments
        WHERE kept_from IS NULL OR moments.at < kept_from OR moments.at >= kept_to
    ) AS sums;
    IF held + coalesce(NEW.num_slots, in_all) > fit THEN
        RAISE EXCEPTION 'one_holder: % of the % slots of % are held', held, fit, NEW.node_id
            USING ERRCODE = 'exclusion_violation', CONSTRAINT = 'one_holder', TABLE = 'occupancy';
    END IF;
    RETURN NEW;
END $$
"""

SAME_SLOTS = """
(OLD.live AND OLD.kind <> 'down' AND NEW.node_id = OLD.node_id AND NEW.num_slots IS OLD.num_slots)
"""
SQLITE = f"""
CREATE TRIGGER one_holder_update BEFORE UPDATE ON occupancy
WHEN NEW.live AND NEW.kind <> 'down'
AND NOT ({SAME_SLOTS} AND NEW.hold_start >= OLD.hold_start AND NEW.hold_end <= OLD.hold_end)
BEGIN SELECT RAISE(ABORT, 'one_holder') WHERE EXISTS (
    SELECT 1
    FROM (
        SELECT NEW.hold_start AS at
        UNION
        SELECT OLD.hold_end WHERE OLD.hold_end > NEW.hold_start AND OLD.hold_end < NEW.hold_end
        UNION
        SELECT hold_start FROM occupancy
        WHERE node_id = NEW.node_id AND live AND id IS NOT NEW.id
        AND hold_start > NEW.hold_start AND hold_start < NEW.hold_end
        AND hold_end > NEW.hold_start
    ) AS moments
    JOIN nodes ON nodes.id = NEW.node_id
    WHERE NOT ({SAME_SLOTS} AND moments.at >= OLD.hold_start AND moments.at < OLD.hold_end)
    AND coalesce(NEW.num_slots, nodes.slots) + (
        SELECT coalesce(sum(coalesce(other.num_slots, nodes.slots)), 0) FROM occupancy AS other
        WHERE other.node_id = NEW.node_id AND other.live AND other.id IS NOT NEW.id
        AND other.hold_start <= moments.at AND other.hold_end > moments.at
    ) > nodes.slots - CASE WHEN NEW.num_slots IS NULL THEN 0 ELSE (
        SELECT count(*) FROM node_slots
        WHERE node_slots.node_id = NEW.node_id AND node_slots.state = 'quarantined'
    ) END
);
END
"""


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(POSTGRESQL)
        return
    op.execute("DROP TRIGGER one_holder_update")
    op.execute(SQLITE)
