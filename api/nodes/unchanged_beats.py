"""Heartbeats that change nothing: those of a moment are looked at and written together.

Most heartbeats of a large cluster say what the one before has said, and want the orders that the
node has. If the mark that comes with one (`api.nodes.order_marks`) is still right, only the time
and the telemetry are written, and the answer is empty: three statements for a group, and one more
that all writes begin with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from api.nodes.order_marks import end_of, read_bases
from api.web.bells import Bells
from api.web.groups import Groups
from api.web.process import Process
from core.base.clock import utc_now
from core.tables.nodes import Node
from core.wire.messages import Heartbeat
from core.workspaces.quota import Quota

# Built once: to build a query takes longer than to ask it, and every heartbeat asks these.
FREE = (
    select(Node.id)
    .where(Node.id.in_(bindparam("node_ids", expanding=True)))
    .with_for_update(key_share=True, skip_locked=True)
)
SEEN = (
    update(Node)
    .where(Node.id == bindparam("node_id"))
    .values(last_seen_at=bindparam("now"), telemetry=bindparam("told"))
)


@dataclass(frozen=True)
class MarkedBeat:
    """A heartbeat with the mark of the node's orders; who sent it is not yet checked."""

    token_sha256: str
    mark: str
    beat: Heartbeat


class MarkedBeats(Groups[MarkedBeat, bool]):
    """Marked heartbeats that wait to be looked at."""

    RESTS = 9.0


async def is_unchanged(process: Process, sent: MarkedBeat) -> bool:
    """Take in a heartbeat if its mark is right, and return True; else do nothing."""
    if end_of(sent.mark) <= utc_now().timestamp():
        return False

    def write(beats: Sequence[MarkedBeat]) -> Sequence[bool]:
        settings = process.settings
        patience = timedelta(seconds=settings.unreachable_after_s / 2)
        return process.transact_first(
            take_unchanged, beats, quota=settings.workspace_quota, patience=patience, now=utc_now()
        )

    return await process.service(MarkedBeats).write(sent, write)


def take_unchanged(
    session: Session,
    _: Bells,
    sent: Sequence[MarkedBeat],
    *,
    quota: Quota,
    patience: timedelta,
    now: datetime,
) -> Sequence[bool]:
    """Write that nodes were seen, of those whose heartbeat changes nothing; return which these are.

    Bookings of a node lock its row in turn: a heartbeat does not wait for them, and says so at the
    next one. But a node that was not written for `patience`, and can't be now, is not among those
    returned. A heartbeat that only comes late is: to take it in whole would make the others later.
    """
    bases = read_bases(session, [one.token_sha256 for one in sent], now=now)
    same = {
        number: basis
        for number, one in enumerate(sent)
        if (basis := bases.get(one.token_sha256)) is not None
        # The use of its GPUs says whether a workbench is idle.
        and not (basis.has_workbench and one.beat.telemetry.gpu_pct)
        and basis.mark(one.beat, quota, until=end_of(one.mark)) == one.mark
    }
    if not same:
        return [False] * len(sent)
    free = set(session.scalars(FREE, {"node_ids": [basis.node_id for basis in same.values()]}))
    rows = [
        {
            "node_id": basis.node_id,
            "told": sent[number].beat.telemetry.model_dump(mode="json"),
            "now": now,
        }
        for number, basis in same.items()
        if basis.node_id in free
    ]
    if rows:
        session.connection().execute(SEEN, rows)
    return [
        number in same and (same[number].node_id in free or same[number].is_written(now - patience))
        for number in range(len(sent))
    ]
