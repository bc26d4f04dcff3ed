"""From the text of an agenda to planned jobs for a lease, or for a block of hours; all or none."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.errors import InvalidRequest, validation_items
from api.identity import Person
from api.jobs.agenda_schemas import NewAgenda
from api.jobs.plan_cache import USED_STATES, ClassPlanned, PlanCache, classes_on_offer
from api.jobs.submission import Planned, overridden, plan_job, read_spec, require_runnable
from api.schemas import ProblemItem
from core import touching
from core.agenda import Item, place_of
from core.agenda_reading import expected_s, read_beside
from core.errors import BadRequest
from core.policy.grid import HOUR, hour_ceiling, usable_end
from core.situation import rules_for
from core.states import LeaseState
from core.strict_text import Json, Path, SpecText
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease
from core.tables.nodes import Node, NodeClass

MOST_SHOWN = 63  # characters of a name


@dataclass(frozen=True)
class Room:
    """What an agenda is planned into."""

    lease_id: str | None
    """None: a block that is not booked."""
    node_class: str
    slots: int
    begins: datetime
    usable_end: datetime
    beside: Sequence[Item] = ()
    """Jobs of the owner's that run in the lease or wait for it."""


@dataclass(frozen=True)
class Entry:
    """A job of the agenda with its plan."""

    planned: Planned
    chosen: ClassPlanned

    def item(self, now: datetime) -> Item:
        """As the agenda counts it if it is submitted now."""
        spec = self.planned.spec
        return Item(
            name=spec.name,
            slots=spec.resources.ranks_per_node,
            budget_s=spec.resources.wall_time,
            expected_s=expected_s(self.chosen.plan),
            place=place_of(now, spec.resources.wall_time),
        )


def read_agenda(text: SpecText) -> NewAgenda:
    """The agenda that a text asks for, its jobs not yet read; wrong fields are named with lines."""
    try:
        return NewAgenda.model_validate(text.value)
    except ValidationError as error:
        items = validation_items(error.errors(include_url=False), lines=text.lines)
        raise InvalidRequest(items) from error


def room_in_lease(session: Session, lease_id: str, *, user_id: str, now: datetime) -> Room:
    """What a booked lease of the user's has from now on. BadRequest where it can't be used."""
    found = session.execute(
        select(Lease, Node.class_name, NodeClass.hardware)
        .join(Node, Node.id == Lease.node_id)
        .join(NodeClass, NodeClass.name == Node.class_name)
        .where(Lease.id == lease_id, Lease.user_id == user_id)
    ).one_or_none()
    why = None
    if found is None:
        why = "you have no such lease"
    elif found[0].state not in (LeaseState.BOOKED, LeaseState.ACTIVE):
        why = f"that lease is {found[0].state}"
    elif found[0].kind is LeaseKind.WALK_IN:
        why = "that is a walk-in, which ends with its last job"
    if found is None or why is not None:
        raise BadRequest(
            f"lease: {lease_id} can't be used, {why}. Book one: trainyard leases book.",
            code="unknown_lease",
            param="lease",
        )
    lease, node_class, hardware = found
    last = touching.stopped_with(session, lease)
    return Room(
        lease_id=lease.id,
        node_class=node_class,
        slots=int(hardware["slots"]),
        begins=max(now, lease.hold_start),
        usable_end=usable_end(last.hold_end, last.grace_s),
        beside=read_beside(session, lease, last, now=now),
    )


def room_in_block(
    session: Session, hours: int, node_class: str, person: Person, *, now: datetime
) -> Room:
    """What a block of the class would have, here from the next full hour on."""
    offers = {offer.name: offer for offer in classes_on_offer(session)}
    if node_class not in offers:
        raise BadRequest(
            f"node_class: there is no node of class {node_class!r} here. Classes: "
            f"{', '.join(offers) or 'none yet'}.",
            code="unknown_node_class",
            param="node_class",
        )
    node = session.scalars(
        select(Node)
        .where(Node.class_name == node_class, Node.state.in_(USED_STATES))
        .order_by(Node.name)
        .limit(1)
    ).one()
    grid = rules_for(session, person.id, node).grid
    begins = hour_ceiling(now, grid.anchor)
    return Room(
        lease_id=None,
        node_class=node_class,
        slots=offers[node_class].hardware.slots,
        begins=begins,
        usable_end=usable_end(begins + hours * HOUR, grid.grace_s),
    )


def plan_agenda(
    session: Session,
    cache: PlanCache,
    agenda: NewAgenda,
    room: Room,
    lines: dict[Path, int],
    *,
    user_id: str,
) -> list[Entry]:
    """Every job with its plan on the room's class. Reads only.

    Raises InvalidRequest with all that keeps any of them from running.
    """
    entries: list[Entry] = []
    items: list[ProblemItem] = []
    for index, own in enumerate(agenda.jobs):
        text = _job_text(agenda, index, room, lines)
        try:
            _refuse_own_lease({**agenda.common, **own})
            entries.append(_plan_one(session, cache, text, room, user_id=user_id))
        except InvalidRequest as error:
            items += [_of_job(index, text, item) for item in error.items]
        except BadRequest as error:
            item = ProblemItem(param=error.param or "", code=error.code, message=error.message)
            items.append(_of_job(index, text, item))
    if items:
        more = f" ({len(items) - 1} more below.)" if len(items) > 1 else ""
        raise InvalidRequest(
            items,
            code="cannot_run",
            detail=f"Nothing was submitted, because not every job can run: {items[0].message}"
            f"{more}",
        )
    return entries


def _refuse_own_lease(own: dict[str, Json]) -> None:
    for field in ("lease", "leases"):
        if own.get(field) is not None:
            raise BadRequest(
                f"{field}: the agenda's lease is every job's; leave it out.", param=field
            )


def _plan_one(
    session: Session, cache: PlanCache, text: SpecText, room: Room, *, user_id: str
) -> Entry:
    spec = read_spec(text)
    if spec.resources.nodes != 1:
        raise BadRequest(
            f"resources.nodes: an agenda runs in one lease, on one node, not on "
            f"{spec.resources.nodes}.",
            param="resources.nodes",
        )
    if spec.resources.node_class not in (None, room.node_class):
        raise BadRequest(
            f"resources.node_class is {spec.resources.node_class}, but the agenda's node is a "
            f"{room.node_class}. Leave node_class out.",
            code="lease_mismatch",
            param="resources.node_class",
        )
    planned = plan_job(session, cache, spec, user_id=user_id)
    return Entry(planned, require_runnable(planned))


def _job_text(agenda: NewAgenda, index: int, room: Room, lines: dict[Path, int]) -> SpecText:
    """One job as if it stood alone, with the lines of its fields, and its lease or class."""
    value = overridden(agenda.common, agenda.jobs[index])
    if room.lease_id is not None:
        value["lease"] = room.lease_id
    elif isinstance(resources := value.get("resources"), dict):
        value["resources"] = {"node_class": room.node_class, **resources}
    common = {path[1:]: line for path, line in lines.items() if path[0] == "common"}
    own = {path[2:]: line for path, line in lines.items() if path[:2] == ("jobs", index)}
    return SpecText(value=value, lines={**common, **own})


def _of_job(index: int, text: SpecText, item: ProblemItem) -> ProblemItem:
    """What is wrong with one job, with its place in the agenda."""
    name = text.value.get("name")
    called = f" ({name})" if isinstance(name, str) and len(name) <= MOST_SHOWN else ""
    return ProblemItem(
        param=f"jobs.{index}.{item.param}",
        code=item.code,
        message=f"job {index + 1}{called}: {item.message}",
    )
