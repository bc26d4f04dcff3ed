"""Views of nodes: what each is, who has it, what runs on it.

All nodes of a page are looked up together, by one query for each kind of fact.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Row, Select, select
from sqlalchemy.orm import Session

from api.nodes import proofs
from api.nodes.schemas import NodeView, SlotView
from api.web.identity import Person
from api.web.process import Process
from core.base.clock import utc_now
from core.base.errors import NotFound
from core.states import LIVE_ATTEMPT
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node, NodeClass, NodeProof, NodeSlot
from core.tables.people import User
from core.wire.messages import Fabric, Inventory, Telemetry
from strategies.plan.hardware import Hardware


@dataclass(frozen=True)
class Facts:
    """Facts about the nodes of a page, each by node id."""

    slots: dict[str, list[SlotView]]
    users: dict[str, list[str]]
    """Names of the users who hold slots now, first come first."""
    jobs: dict[str, list[Row[str, str, str, str]]]
    """Node id, id, name and owner's id of the jobs that have slots, first assigned first."""
    free_at: dict[str, datetime]
    """End of the unbroken stretch of holds that includes now; missing where none does."""
    proofs: dict[str, NodeProof]


def show_node(session: Session, process: Process, person: Person, node_id: str) -> NodeView:
    """Return the view of a node that a person has, by id or name. Raises NotFound."""
    row = session.execute(with_classes().where(Node.goes_by(node_id))).first()
    if row is None:
        raise NotFound(f"There is no node {node_id!r}.")
    [view] = node_views(session, process, person, [row])
    return view


def with_classes() -> Select[Node, NodeClass]:
    """Select each node with its class."""
    return select(Node, NodeClass).join(NodeClass, NodeClass.name == Node.class_name)


def node_views(
    session: Session, process: Process, person: Person, rows: Sequence[Row[Node, NodeClass]]
) -> list[NodeView]:
    """Return the views that a person has of nodes, in their order."""
    now = utc_now()
    facts = _facts(session, [node.id for node, _ in rows], now)
    silence = timedelta(seconds=process.settings.unreachable_after_s)
    return [_view(node, of_class, facts, person, now, silence) for node, of_class in rows]


def _view(
    node: Node,
    node_class: NodeClass,
    facts: Facts,
    person: Person,
    now: datetime,
    silence: timedelta,
) -> NodeView:
    jobs, users = facts.jobs.get(node.id, []), facts.users.get(node.id, [])
    seen, proof = node.last_seen_at, facts.proofs.get(node.id)
    return NodeView(
        id=node.id,
        name=node.name,
        node_class=node.class_name,
        state=node.state,
        reason=node.reason,
        hardware=Hardware.model_validate(node_class.hardware),
        fabric=Fabric.model_validate(node_class.fabric),
        inventory=Inventory.model_validate(node.inventory),
        slots=facts.slots.get(node.id, []),
        sharing=node.sharing,
        no_sharing=why_not_shared(node),
        telemetry=Telemetry.model_validate(node.telemetry) if node.telemetry else None,
        reachable=node.unreachable_since is None and seen is not None and now - seen <= silence,
        last_seen_at=seen,
        unreachable_since=node.unreachable_since,
        proof=None if proof is None else proofs.summary(proof, node),
        user=users[0] if users else None,
        users=users,
        job=jobs[0].id if jobs else None,
        jobs=[job.id for job in jobs],
        job_names={job.id: job.name for job in jobs if person.is_staff or job.user_id == person.id},
        free_at=facts.free_at.get(node.id),
    )


def why_not_shared(node: Node) -> str:
    """Return the reason why not all jobs of different owners run beside each other on a node."""
    if node.inventory.get("sharing") is None:
        return "its worker is of an older version, which does not report it"
    return str(node.inventory.get("no_sharing", ""))


def _facts(session: Session, ids: Sequence[str], now: datetime) -> Facts:
    slots: dict[str, list[SlotView]] = defaultdict(list)
    of_nodes = select(NodeSlot.node_id, NodeSlot.slot, NodeSlot.state, NodeSlot.reason)
    for node_id, slot, state, reason in session.execute(
        of_nodes.where(NodeSlot.node_id.in_(ids)).order_by(NodeSlot.slot)
    ):
        slots[node_id].append(SlotView(slot=slot, state=state, reason=reason))
    jobs: dict[str, list[Row[str, str, str, str]]] = defaultdict(list)
    for job in session.execute(
        select(AttemptPart.node_id, Job.id, Job.name, Job.user_id)
        .join(Attempt, Attempt.id == AttemptPart.attempt_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(
            AttemptPart.node_id.in_(ids),
            AttemptPart.ended_at.is_(None),
            Attempt.state.in_(LIVE_ATTEMPT),
        )
        .order_by(Attempt.assigned_at)
    ):
        jobs[job.node_id].append(job)
    return Facts(
        slots=slots,
        users=_users(session, ids, now),
        jobs=jobs,
        free_at=_free_at(session, ids, now),
        proofs=proofs.last_of(session, ids),
    )


def _users(session: Session, ids: Sequence[str], now: datetime) -> dict[str, list[str]]:
    rows = session.execute(
        select(Occupancy.node_id, User.name)
        .join(Lease, Lease.id == Occupancy.lease_id)
        .join(User, User.id == Lease.user_id)
        .where(
            Occupancy.node_id.in_(ids),
            Occupancy.live,
            Occupancy.hold_start <= now,
            Occupancy.hold_end > now,
        )
        .order_by(Occupancy.hold_start, Lease.id)
    )
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for node_id, name in rows:
        found[node_id][name] = None
    return {node_id: list(names) for node_id, names in found.items()}


def _free_at(session: Session, ids: Sequence[str], now: datetime) -> dict[str, datetime]:
    spans = session.execute(
        select(Occupancy.node_id, Occupancy.hold_start, Occupancy.hold_end)
        .where(Occupancy.node_id.in_(ids), Occupancy.live, Occupancy.hold_end > now)
        .order_by(Occupancy.hold_start)
    )
    ends: dict[str, datetime] = {}
    for node_id, start, end in spans:
        if start <= ends.get(node_id, now):
            ends[node_id] = max(end, ends.get(node_id, end))
    return ends
