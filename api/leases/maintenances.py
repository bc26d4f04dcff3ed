"""Maintenance: hours that staff have reserved."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.leases.block_requests import nodes_named
from api.leases.clock_times import moment_of, zone_of
from api.leases.schemas import DisplacedLeaseView, MaintenanceView, NewMaintenance, OccurrenceView
from api.web import audit
from api.web.bells import Bells
from api.web.identity import Person
from api.web.paging import page
from api.web.schemas import Page
from core.base.clock import utc_now
from core.base.errors import BadRequest, Conflict, NotFound
from core.base.ids import IdKind, new_id
from core.leases import maintenance
from core.leases.maintenance import DisplacedLease, MaintenanceSlot
from core.leases.recurrence import occurrences
from core.policy.grid import HOUR
from core.tables.leases import Lease, Maintenance, Occupancy
from core.tables.nodes import Node
from core.tables.people import User

MAX_SLOTS = 2000  # occurrences x nodes of one maintenance


@dataclass(frozen=True)
class DisplacementPlan:
    """A new maintenance, and the leases that stood in its way."""

    row_id: str
    displaced: Sequence[DisplacedLease]
    slots: Sequence[MaintenanceSlot]
    plan: str


def plan_of(session: Session, wanted: NewMaintenance, person: Person) -> MaintenanceView:
    """Return the plan of a maintenance. Raises NotFound, BadRequest."""
    slots = _slots(session, wanted, person)
    displaced = maintenance.plan(session, slots)
    return MaintenanceView(
        id=None,
        why=wanted.why,
        rule=wanted.rule,
        zone=wanted.zone or person.zone,
        hours=wanted.hours,
        occurrences=[_occurrence(session, slot, held=False) for slot in slots],
        displaced=[_displaced(session, one, "") for one in displaced],
        plan=maintenance.plan_hash(displaced),
        created_at=None,
        cancelled_at=None,
    )


def list_maintenance(session: Session, *, limit: int, after: str | None) -> Page[MaintenanceView]:
    """Return a page of maintenances, newest first."""
    rows = page(session, select(Maintenance), Maintenance.id, after=after, limit=limit)
    data = [_view(session, row, (), None, "") for (row,) in rows]
    return Page[MaintenanceView](data=data, has_more=rows.has_more)


def end(
    session: Session, bells: Bells, maintenance_id: str, person: Person, *, now: datetime
) -> None:
    """Give the remaining hours of a maintenance back. Raises NotFound."""
    row = session.get(Maintenance, maintenance_id, with_for_update=True)
    if row is None:
        raise NotFound(f"There is no maintenance {maintenance_id!r}.")
    if row.cancelled_at is None:
        maintenance.give_back(session, row, now=now)
        audit.record(session, person.id, "maintenance.end", row.id, now=now)
        bells.scheduler = True


def create(
    session: Session, bells: Bells, wanted: NewMaintenance, person: Person, now: datetime
) -> DisplacementPlan:
    """Insert a maintenance and hold its free hours. Raises Conflict unless its plan was read."""
    slots = _slots(session, wanted, person)
    displaced = maintenance.plan(session, slots)
    agreed = maintenance.plan_hash(displaced)
    if displaced and wanted.plan != agreed:
        raise Conflict(
            f"{len(displaced)} leases conflict with the maintenance"
            + (", and they have changed since the plan was made" if wanted.plan else "")
            + (
                ". Read the answer of POST /v1/maintenance/plan, then repeat this request "
                f"with plan={agreed}."
            ),
            code="plan_needed",
            param="plan",
        )
    row = Maintenance(
        id=new_id(IdKind.MAINTENANCE),
        why=wanted.why,
        rule=wanted.rule,
        zone=wanted.zone or person.zone,
        first_start=slots[0].start,
        hours=wanted.hours,
        created_by=person.id,
        created_at=now,
        cancelled_at=None,
    )
    session.add(row)
    session.flush()
    for slot in slots:
        maintenance.keep(session, row, slot)
    audit.record(session, person.id, "maintenance.create", row.id, now=now, nodes=wanted.nodes)
    bells.scheduler = True
    return DisplacementPlan(row.id, displaced, slots, agreed)


def displace(
    session: Session,
    bells: Bells,
    row_id: str,
    one: DisplacedLease,
    person: Person,
    now: datetime,
    why: str,
) -> str:
    """Displace one lease, and hold its hours for the maintenance; return the result."""
    done = maintenance.displace(session, one, why=why, actor=person.id, now=now)
    maintenance.keep(session, session.get_one(Maintenance, row_id), one.slot)
    audit.record(session, person.id, "lease.displace", one.lease_id, now=now, result=done, why=why)
    bells.scheduler = True
    return done


def show(
    session: Session, made: DisplacementPlan, results: Sequence[tuple[DisplacedLease, str]]
) -> MaintenanceView:
    """Return a new maintenance with the result for each lease that stood in its way."""
    row = session.get_one(Maintenance, made.row_id)
    return _view(session, row, results, made.slots, made.plan)


def _slots(session: Session, wanted: NewMaintenance, person: Person) -> list[MaintenanceSlot]:
    nodes = nodes_named(session, wanted.nodes, param="nodes")
    zone_name = wanted.zone or person.zone
    start = moment_of(wanted.start, wanted.zone, param="start")
    starts = occurrences(wanted.rule, start, zone_of(zone_name))
    if starts[0] < utc_now() - HOUR:
        raise BadRequest("start: it must not be in the past.", param="start", code="in_the_past")
    if len(starts) * len(nodes) > MAX_SLOTS:
        raise BadRequest(
            f"rule: {len(starts)} times on {len(nodes)} nodes are more than the limit of "
            f"{MAX_SLOTS}.",
            param="rule",
        )
    length = timedelta(hours=wanted.hours)
    return [MaintenanceSlot(node.id, at, at + length) for at in starts for node in nodes]


def _view(
    session: Session,
    row: Maintenance,
    results: Sequence[tuple[DisplacedLease, str]],
    slots: Sequence[MaintenanceSlot] | None,
    plan: str,
) -> MaintenanceView:
    held = [
        MaintenanceSlot(node_id, start, end)
        for node_id, start, end in session.execute(
            select(Occupancy.node_id, Occupancy.hold_start, Occupancy.hold_end)
            .where(Occupancy.maintenance_id == row.id, Occupancy.live)
            .order_by(Occupancy.hold_start, Occupancy.node_id)
        )
    ]
    return MaintenanceView(
        id=row.id,
        why=row.why,
        rule=row.rule,
        zone=row.zone,
        hours=row.hours,
        occurrences=[_occurrence(session, slot, held=slot in held) for slot in (slots or held)],
        displaced=[_displaced(session, one, done) for one, done in results],
        plan=plan,
        created_at=row.created_at,
        cancelled_at=row.cancelled_at,
    )


def _occurrence(session: Session, slot: MaintenanceSlot, *, held: bool) -> OccurrenceView:
    name = session.get_one(Node, slot.node_id).name
    return OccurrenceView(node=name, start=slot.start, end=slot.end, held=held)


def _displaced(session: Session, one: DisplacedLease, result: str) -> DisplacedLeaseView:
    lease = session.get_one(Lease, one.lease_id)
    return DisplacedLeaseView(
        lease=lease.id,
        user=session.get_one(User, lease.user_id).name,
        node=session.get_one(Node, one.slot.node_id).name,
        hold_start=lease.hold_start,
        hold_end=lease.hold_end,
        act=one.act,
        to_node=session.get_one(Node, one.to_node_id).name if one.to_node_id else None,
        result=result,
    )
