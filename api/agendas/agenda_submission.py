"""Planning of an agenda's text into a lease, or into a block of hours: all jobs or none."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.agendas.schemas import NewAgenda
from api.jobs.plan_cache import USED_STATES, Offers, PlanCache, PlanOnClass
from api.jobs.submission import PlannedSpec, overridden, plan_job, read_spec, require_runnable
from api.web.errors import InvalidRequest, validation_items
from api.web.identity import Person
from api.web.schemas import ProblemItem
from core.agendas.agenda import AgendaItem, Capacity, lay_out, place_of
from core.agendas.reading import expected_s, hours_of, read_beside
from core.base.errors import BadRequest
from core.base.strict_text import Json, Path, SpecText
from core.leases.situation import rules_for
from core.policy.grid import HOUR, hour_ceiling, usable_end
from core.spec.spec import AnyJobSpec
from core.states import LeaseState
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease
from core.tables.nodes import Node, NodeClass

MOST_SHOWN = 63  # characters of a name


@dataclass(frozen=True)
class AgendaBlock:
    """Nodes and hours that an agenda is planned into."""

    leases: Sequence[str]
    """Ids of the leases, one for each node; empty if the block is not booked."""
    node_class: str
    capacity: Capacity
    begins: datetime
    usable_end: datetime
    beside: Sequence[AgendaItem] = ()
    """Other jobs of the owner that run in the leases or wait for them."""


@dataclass(frozen=True)
class PlannedItem:
    """A job of the agenda with its plan."""

    planned: PlannedSpec
    chosen: PlanOnClass
    item: AgendaItem


def read_agenda(text: SpecText) -> NewAgenda:
    """Return the agenda that a text asks for, its jobs not yet read. Wrong fields are named with
    lines."""
    try:
        return NewAgenda.model_validate(text.value)
    except ValidationError as error:
        items = validation_items(error.errors(include_url=False), lines=text.lines)
        raise InvalidRequest(items) from error


def block_of_lease(session: Session, lease_id: str, *, user_id: str, now: datetime) -> AgendaBlock:
    """Return the rest, from now on, of a booked lease of the user and of those booked together with
    it. Raises BadRequest if the lease cannot be used."""
    found = session.execute(
        select(Lease, Node.class_name, NodeClass.hardware)
        .join(Node, Node.id == Lease.node_id)
        .join(NodeClass, NodeClass.name == Node.class_name)
        .where(Lease.id == lease_id, Lease.user_id == user_id)
    ).one_or_none()
    if found is None:
        raise _unusable(lease_id, "you have no such lease")
    lease, node_class, hardware = found
    if lease.kind is LeaseKind.WALK_IN:
        raise _unusable(lease_id, "it is a walk-in, which ends with its last job")
    if lease.state not in (LeaseState.BOOKED, LeaseState.ACTIVE):
        raise _unusable(lease_id, f"it is {lease.state}")
    hours = hours_of(session, lease)
    for other in hours.leases:
        if other.state not in (LeaseState.BOOKED, LeaseState.ACTIVE):
            raise _unusable(lease_id, f"{other.id}, booked together with it, is {other.state}")
    classes = session.scalars(
        select(Node.class_name)
        .where(Node.id.in_([one.node_id for one in hours.leases]))
        .distinct()
        .order_by(Node.class_name)
    ).all()
    if len(classes) > 1:
        together = f"it was booked together with others, of the classes {', '.join(classes)}"
        raise _unusable(lease_id, together)
    return AgendaBlock(
        leases=[one.id for one in hours.leases],
        node_class=node_class,
        capacity=Capacity(len(hours.leases), int(hardware["slots"])),
        begins=max(now, hours.begins),
        usable_end=hours.usable_end,
        beside=read_beside(session, hours, now=now),
    )


def block_of_class(
    session: Session, hours: int, node_class: str, nodes: int, person: Person, *, now: datetime
) -> AgendaBlock:
    """Return a block of `hours` on `nodes` nodes of the class, from the next full hour here on."""
    offers = {offer.name: offer for offer in Offers(session).all}
    if node_class not in offers:
        raise BadRequest(
            f"node_class: there is no node of class {node_class!r} here. Classes: "
            f"{', '.join(offers) or 'none yet'}.",
            code="unknown_node_class",
            param="node_class",
        )
    if nodes > offers[node_class].num_nodes:
        raise BadRequest(
            f"nodes: {nodes} nodes were requested, but class {node_class} has "
            f"{offers[node_class].num_nodes}. Request fewer.",
            code="too_few_nodes",
            param="nodes",
        )
    node = session.scalars(
        select(Node)
        .where(Node.class_name == node_class, Node.state.in_(USED_STATES))
        .order_by(Node.name)
        .limit(1)
    ).one()
    grid = rules_for(session, person.id, node).grid
    begins = hour_ceiling(now, grid.anchor)
    return AgendaBlock(
        leases=(),
        node_class=node_class,
        capacity=Capacity(nodes, offers[node_class].hardware.slots),
        begins=begins,
        usable_end=usable_end(begins + hours * HOUR, grid.grace_s),
    )


def plan_agenda(
    session: Session,
    cache: PlanCache,
    agenda: NewAgenda,
    block: AgendaBlock,
    lines: dict[Path, int],
    *,
    user_id: str,
    now: datetime,
) -> list[PlannedItem]:
    """Plan every job on the block's class and choose its nodes. Reads only.

    Raises InvalidRequest with all reasons that keep any of the jobs from running.
    """
    specs: dict[int, AnyJobSpec] = {}
    entries: list[PlannedItem] = []
    items: dict[int, list[ProblemItem]] = {}
    texts = [_job_text(agenda, index, block, lines) for index in range(len(agenda.jobs))]
    for index, text in enumerate(texts):
        with _noting(items, index, text):
            _refuse_own_lease(text.value)
            specs[index] = _read_one(text, block)
    nodes = _places(specs, agenda, block, now=now)
    for index, spec in specs.items():
        with _noting(items, index, texts[index]):
            entries.append(_plan_one(session, cache, spec, nodes[index], block, user_id, now))
    if items:
        first, *rest = [item for index in sorted(items) for item in items[index]]
        more = f" ({len(rest)} more below.)" if rest else ""
        raise InvalidRequest(
            [first, *rest],
            code="cannot_run",
            detail=f"Nothing was submitted, because not every job can run: {first.message}{more}",
        )
    return entries


def _unusable(lease_id: str, why: str) -> BadRequest:
    return BadRequest(
        f"lease: {lease_id} cannot be used: {why}. Book a lease: trainyard leases book.",
        code="unknown_lease",
        param="lease",
    )


@contextmanager
def _noting(items: dict[int, list[ProblemItem]], index: int, text: SpecText) -> Iterator[None]:
    """Collect the errors of one job, with its place in the agenda."""
    try:
        yield
    except InvalidRequest as error:
        items[index] = [_of_job(index, text, item) for item in error.items]
    except BadRequest as error:
        item = ProblemItem(param=error.param or "", code=error.code, message=error.message)
        items[index] = [_of_job(index, text, item)]


def _refuse_own_lease(own: dict[str, Json]) -> None:
    for field in ("lease", "leases"):
        if own.get(field) is not None:
            raise BadRequest(
                f"{field}: every job of an agenda runs in the agenda's lease. Leave the field out.",
                param=field,
            )


def _read_one(text: SpecText, block: AgendaBlock) -> AnyJobSpec:
    spec = read_spec(text)
    wanted, has = spec.resources.nodes, block.capacity.num_nodes
    if wanted > has:
        raise BadRequest(
            f"resources.nodes: {wanted} nodes were requested, but the agenda's lease has "
            f"{has}. Request fewer, or book more nodes together.",
            param="resources.nodes",
        )
    if spec.resources.node_class not in (None, block.node_class):
        raise BadRequest(
            f"resources.node_class is {spec.resources.node_class}, but the agenda's node is "
            f"of class {block.node_class}. Leave node_class out.",
            code="lease_mismatch",
            param="resources.node_class",
        )
    return spec


def _places(
    specs: Mapping[int, AnyJobSpec], agenda: NewAgenda, block: AgendaBlock, *, now: datetime
) -> dict[int, tuple[int, ...]]:
    """Return the nodes on which each job would start if all use up their wall times. The job must
    run there, because a job names its leases when it is submitted."""
    items = [
        _item(spec, slots=_slots_asked(spec, block.capacity), now=now) for spec in specs.values()
    ]
    layout = lay_out(
        items,
        block.beside,
        block.capacity,
        lambda item: item.left_s,
        now=max(now, block.begins),
        side_by_side=agenda.side_by_side,
    )
    return {
        index: span.nodes
        for index, span in zip(specs, layout.spans, strict=True)
        if span is not None
    }


def _slots_asked(spec: AnyJobSpec, capacity: Capacity) -> int:
    """Return the slots of a node that the job asks for; all of them where the plan is to decide."""
    asked = spec.resources.ranks_per_node
    return capacity.slots if isinstance(asked, str) else asked


def _item(spec: AnyJobSpec, *, slots: int, now: datetime) -> AgendaItem:
    """Return the item with which an agenda's timetable counts a job that is submitted now."""
    return AgendaItem(
        name=spec.name,
        slots=slots,
        budget_s=spec.resources.wall_time,
        place=place_of(now, spec.resources.wall_time),
        num_nodes=spec.resources.nodes,
    )


def _plan_one(
    session: Session,
    cache: PlanCache,
    spec: AnyJobSpec,
    nodes: tuple[int, ...],
    block: AgendaBlock,
    user_id: str,
    now: datetime,
) -> PlannedItem:
    if block.leases:
        first, *others = [block.leases[node] for node in nodes[: spec.resources.nodes]]
        named = {"leases": (first, *others)} if others else {"lease": first}
        spec = spec.model_copy(update=named)
    planned = plan_job(session, cache, spec, user_id=user_id)
    chosen = require_runnable(planned)
    counted = _item(spec, slots=chosen.plan.ranks_per_node, now=now)
    item = replace(counted, expected_s=expected_s(chosen.plan), nodes=nodes)
    return PlannedItem(planned, chosen, item)


def _job_text(
    agenda: NewAgenda, index: int, block: AgendaBlock, lines: dict[Path, int]
) -> SpecText:
    """Return the text of one job as if it stood alone, with the block's class and the lines of its
    fields."""
    value = overridden(agenda.common, agenda.jobs[index])
    if not block.leases and isinstance(resources := value.get("resources"), dict):
        value["resources"] = {"node_class": block.node_class, **resources}
    common = {path[1:]: line for path, line in lines.items() if path[0] == "common"}
    own = {path[2:]: line for path, line in lines.items() if path[:2] == ("jobs", index)}
    return SpecText(value=value, lines={**common, **own})


def _of_job(index: int, text: SpecText, item: ProblemItem) -> ProblemItem:
    """Return an error of one job, with the job's place in the agenda."""
    name = text.value.get("name")
    called = f" ({name})" if isinstance(name, str) and len(name) <= MOST_SHOWN else ""
    return ProblemItem(
        param=f"jobs.{index}.{item.param}",
        code=item.code,
        message=f"job {index + 1}{called}: {item.message}",
    )
