"""/v1/usage: hours booked, used and useful, per person, lab and node."""

import csv
import io
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Query, Response
from sqlalchemy import ColumnElement, and_, case, func, or_, select, true
from sqlalchemy.orm import Session

from api.people.schemas_usage import By, UsageRow, UsageView
from api.people.users import checked_zone
from api.web.auth import SignedIn
from api.web.identity import Person
from api.web.process import ProcessDep
from api.web.schemas import AskedMoment
from api.web.text_types import PlainText
from core.base.clock import utc_now
from core.base.errors import BadRequest
from core.leases.periods import HourSums, Per, Period, periods
from core.states import Outcome
from core.tables.files import Checkpoint
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import LeaseKind, OccupancyKind
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node
from core.tables.people import Lab, Membership, User

router = APIRouter(prefix="/v1/usage", tags=["usage"])

DEFAULT_RANGE = timedelta(days=28)
MAX_RANGE = timedelta(days=400)
NOBODYS = "(no lab)"
NUM_SLOTS = func.json_array_length(AttemptPart.slots)  # read by the database: there are many


@router.get(
    "",
    summary="Get booked, used and useful hours",
    response_model=UsageView,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
def get_usage(
    person: SignedIn,
    process: ProcessDep,
    by: Annotated[By, Query(description="Group the hours by user, lab or node.")] = By.USER,
    per: Annotated[Per, Query(description="Divide the hours into days or weeks.")] = Per.WEEK,
    start: Annotated[
        AskedMoment | None, Query(description="Begin of the range. Default: 28 days ago.")
    ] = None,
    end: Annotated[AskedMoment | None, Query(description="End of the range. Default: now.")] = None,
    zone: Annotated[PlainText | None, Query(description="Default: your own.")] = None,
    format: Annotated[Literal["json", "csv"], Query()] = "json",
) -> UsageView | Response:
    """Return booked, used and useful hours: all for staff, a lab's for its leads, and your own.

    Booked hours are held by leases. In used hours a job had the GPUs. Useful hours were spent in
    training steps whose work was kept: up to the last step of an attempt that succeeded, or to the
    last checkpoint of any other attempt.
    """
    now = utc_now()
    until = end or now
    since = start or until - DEFAULT_RANGE
    if not since < until <= since + MAX_RANGE:
        raise BadRequest(
            f"start: it must be before end, by {MAX_RANGE.days} days at most.", param="start"
        )
    if since.year < 2000 or until.year > 9000:
        raise BadRequest("start: it is out of range.", param="start")
    shown = ZoneInfo(checked_zone(zone or person.zone))
    cut = list(periods(since, until, per=per, zone=shown))
    with process.read() as session:
        may_see = _visible(session, person)
        booked = _booked(session, by, cut, may_see)
        used, useful = _worked(session, by, cut, may_see, now)
    rows = _rows(booked, used, useful, cut)
    if format == "csv":
        return _as_csv(rows, by)
    return UsageView(
        by=by,
        per=per,
        start=since,
        end=until,
        zone=shown.key,
        rows=rows,
        total=_total(rows),
    )


def _visible(session: Session, person: Person) -> ColumnElement[bool]:
    """Return a condition for the leases whose use this person may see."""
    if person.is_staff:
        return true()
    led = session.scalars(
        select(Membership.lab_id).where(Membership.user_id == person.id, Membership.is_lead)
    ).all()
    return or_(Lease.user_id == person.id, Lease.lab_id.in_(led))


def _name_of(by: By) -> ColumnElement[str]:
    if by is By.USER:
        return User.name.expression
    return Node.name.expression if by is By.NODE else func.coalesce(Lab.name, NOBODYS)


def _booked(
    session: Session, by: By, cut: Sequence[Period], may_see: ColumnElement[bool]
) -> HourSums:
    rows = session.execute(
        select(_name_of(by), Occupancy.hold_start, Occupancy.hold_end)
        .add_columns(func.coalesce(Occupancy.num_slots, Node.slots))
        .join(Lease, Lease.id == Occupancy.lease_id)
        .join(User, User.id == Lease.user_id)
        .outerjoin(Lab, Lab.id == Lease.lab_id)
        .join(Node, Node.id == Occupancy.node_id)
        .where(
            Occupancy.live,
            Occupancy.kind == OccupancyKind.LEASE,
            Occupancy.hold_start < cut[-1].end,
            Occupancy.hold_end > cut[0].start,
            may_see,
        )
    )
    booked = HourSums(cut)
    for name, held_from, held_to, num_slots in rows:
        booked.add(name, held_from, held_to, num_slots)
    return booked


def _worked(
    session: Session,
    by: By,
    cut: Sequence[Period],
    may_see: ColumnElement[bool],
    now: datetime,
) -> tuple[HourSums, HourSums]:
    """Return the hours that jobs had, and those that they spent in steps that were kept."""
    saved = (
        select(Checkpoint.job_id, Checkpoint.epoch, func.max(Checkpoint.created_at).label("last"))
        .group_by(Checkpoint.job_id, Checkpoint.epoch)
        .subquery()
    )
    # Before the job had its walk-in it ran as a guest, in hours that its owner did not hold.
    had_from: ColumnElement[datetime | None] = Attempt.started_at.expression
    if by is not By.NODE:
        walked_in = and_(Lease.kind == LeaseKind.WALK_IN, Lease.hold_start > Attempt.started_at)
        had_from = case((walked_in, Lease.hold_start), else_=Attempt.started_at)
    kept_to = case(
        (Attempt.outcome == Outcome.SUCCEEDED, Attempt.last_step_at),
        (saved.c.last < Attempt.last_step_at, saved.c.last),
        (saved.c.last >= Attempt.last_step_at, Attempt.last_step_at),  # it arrives after its step
    )
    rows = session.execute(
        select(_name_of(by), NUM_SLOTS, had_from)
        .add_columns(func.coalesce(AttemptPart.ended_at, Attempt.ended_at))
        .add_columns(Attempt.first_step_at, kept_to)
        .select_from(Attempt)
        .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
        .join(Lease, Lease.id == AttemptPart.lease_id)
        .join(Job, Job.id == Attempt.job_id)
        .join(User, User.id == Lease.user_id)
        .outerjoin(Lab, Lab.id == Lease.lab_id)
        .join(Node, Node.id == AttemptPart.node_id)
        .outerjoin(saved, and_(saved.c.job_id == Attempt.job_id, saved.c.epoch == Attempt.epoch))
        .where(
            Attempt.started_at < cut[-1].end,
            or_(Attempt.ended_at.is_(None), Attempt.ended_at > cut[0].start),
            may_see,
            # A guest's work counts for the node, but not for the absent owner of the lease.
            true() if by is By.NODE else Job.user_id == Lease.user_id,
        )
    )
    used, useful = HourSums(cut), HourSums(cut)
    for name, gpus, start, ended_at, first_step_at, end_of_kept in rows:
        used.add(name, start, ended_at or now, gpus)
        if first_step_at is not None and end_of_kept is not None:
            useful.add(name, max(first_step_at, start), end_of_kept, gpus)
    return used, useful


def _rows(
    booked: HourSums, used: HourSums, useful: HourSums, cut: Sequence[Period]
) -> list[UsageRow]:
    rows = (
        UsageRow(
            period=period.first,
            name=name,
            booked_hours=booked.of(name, number),
            used_hours=used.of(name, number),
            useful_hours=useful.of(name, number),
        )
        for number, period in enumerate(cut)
        for name in sorted(booked.names | used.names)
    )
    return [row for row in rows if row.booked_hours or row.used_hours or row.useful_hours]


def _total(rows: Sequence[UsageRow]) -> list[UsageRow]:
    names = sorted({row.name for row in rows})
    groups = [[row for row in rows if row.name == name] for name in names]
    return [
        UsageRow(
            period=group[0].period,
            name=group[0].name,
            booked_hours=round(sum(row.booked_hours for row in group), 4),
            used_hours=round(sum(row.used_hours for row in group), 4),
            useful_hours=round(sum(row.useful_hours for row in group), 4),
        )
        for group in groups
    ]


def _as_csv(rows: Sequence[UsageRow], by: By) -> Response:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["period", by, "booked_hours", "used_hours", "useful_hours"])
    for row in rows:
        # A name that a spreadsheet would take for a formula is made a text.
        name = f"'{row.name}" if row.name[:1] in "=+-@\t\r" else row.name
        writer.writerow(
            [row.period.isoformat(), name, row.booked_hours, row.used_hours, row.useful_hours]
        )
    headers = {"Content-Disposition": f'attachment; filename="usage-by-{by}.csv"'}
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)
