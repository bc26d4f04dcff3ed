"""Marks of orders: a short text for all that a node's orders follow from.

The API sends it beside the orders (header `Orders-Mark`), the node sends it back with its next
heartbeat. If it is still the mark of what is in the database, and the node reports nothing new, the
orders are the same too, and the answer says only that. So a change cannot be forgotten by whoever
makes it: nobody has to tell, the rows are read each time.

Orders (`api.nodes.orders`) follow from, and a mark covers:

- the node: state, class, slots, cleanliness, whether it was unreachable; its inventory, as reported
- its live attempts: state, stop reason, request, readiness of all nodes, start, hold of a sandbox,
  idleness, phase, lease, workspace; of their jobs the epoch and the wall time, granted and used.
  Spec, plan, slots, files, rendezvous and checkpoint of an attempt never change
- the leases of these attempts on all of their nodes, and the leases of their owners that may follow
  them without a break: hours, grace, state, slots, state of the node
- for programs: the hosts that classes and labs may reach, labs of their owners, active policies
- jobs whose booked lease on it begins soon: what it fetches ahead
- settings: the quota of workspaces, and the release of the API
- the clock: files are fetched ahead from an hour before a lease, which the rows are read by. All
  other times in orders are moments, told as seconds from the heartbeat that got them; the worker
  counts them from there

A node whose orders follow from more gets no mark, and so all orders with each answer: while an
attempt starts, ends, is held or is not where it should be, and while a guest runs in a lease.
What is missing in this list would reach a node late, but not never: a mark is good for a minute,
and for longer where there are more than REPEATS_PER_S nodes for each of its seconds.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from importlib.metadata import version
from typing import Any

from sqlalchemy import Row, and_, bindparam, select
from sqlalchemy.orm import Session, aliased

from api.nodes.fetching_ahead import AHEAD
from core.states import LIVE_ATTEMPT, AttemptState, JobState, LeaseState, NodeState, Phase
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import LeaseKind, TokenKind
from core.tables.leases import Lease
from core.tables.network import NetworkList
from core.tables.nodes import Node
from core.tables.people import Membership, Token
from core.tables.policies import AppliedPolicy
from core.wire.messages import Heartbeat
from core.workspaces.quota import Quota

AnyRow = Row[Any]
AheadRow = Row[str, str, str, datetime, str]
SHORTEST_S = 60.0  # that a mark is good for
REPEATS_PER_S = 5  # orders that are sent again, to all nodes together, because a mark has ended
SPREAD = 1.5  # so that nodes which have begun together do not ask together for ever
RELEASE = version("trainyard-platform")

# Built once: to build a query takes longer than to ask it, and every heartbeat asks these.
EVERY_PART = aliased(AttemptPart)
ITS_NODE = aliased(Node)
FOLLOWING = aliased(Lease)
IS_SCRIPT = Job.spec["script"].as_string().is_not(None).label("is_script")
IS_WORKBENCH = Job.spec["workbench"].as_string().is_not(None).label("is_workbench")
BEGINS_SOON = (
    select(Lease.id)
    .where(
        Lease.node_id == Node.id,
        Lease.state == LeaseState.BOOKED,
        Lease.hold_start <= bindparam("until"),
    )
    .correlate(Node)
    .exists()
    .label("begins_soon")
)
BASIS = (
    select(Token.sha256, Node.last_seen_at, Node.id, Node.name, Node.class_name)
    .add_columns(
        Node.state.label("node_state"), Node.slots, Node.clean, Node.unreachable_since, BEGINS_SOON
    )
    .add_columns(Attempt.id.label("attempt_id"), Attempt.job_id, Attempt.epoch, Attempt.state)
    .add_columns(Attempt.stop_reason, Attempt.request, Attempt.prepared_at, Attempt.started_at)
    .add_columns(Attempt.held_until, Attempt.idle_since, Attempt.workspace_access)
    .add_columns(AttemptPart.phase, AttemptPart.missing_since, AttemptPart.lease_id)
    .add_columns(AttemptPart.position, Job.epoch.label("job_epoch"), Job.user_id, Job.wall_time_s)
    .add_columns(Job.used_s, IS_SCRIPT, IS_WORKBENCH)
    .add_columns(Lease.id, Lease.user_id.label("holder"), Lease.kind, Lease.state, Lease.node_id)
    .add_columns(Lease.num_slots, Lease.hold_start, Lease.hold_end, Lease.grace_s)
    .add_columns(Lease.checkpoint_s, Lease.kill_after_s, ITS_NODE.state)
    .add_columns(FOLLOWING.id, FOLLOWING.state, FOLLOWING.num_slots, FOLLOWING.hold_start)
    .add_columns(FOLLOWING.hold_end, FOLLOWING.grace_s, FOLLOWING.checkpoint_s)
    .add_columns(FOLLOWING.kill_after_s)
    .join(Node, Node.id == Token.node_id)
    .outerjoin(AttemptPart, and_(AttemptPart.node_id == Node.id, AttemptPart.ended_at.is_(None)))
    .outerjoin(Attempt, and_(Attempt.id == AttemptPart.attempt_id, Attempt.state.in_(LIVE_ATTEMPT)))
    .outerjoin(Job, Job.id == Attempt.job_id)
    .outerjoin(EVERY_PART, EVERY_PART.attempt_id == Attempt.id)
    .outerjoin(Lease, Lease.id == EVERY_PART.lease_id)
    .outerjoin(ITS_NODE, ITS_NODE.id == Lease.node_id)
    .outerjoin(
        FOLLOWING,
        and_(
            Lease.kind == LeaseKind.BOOKED,
            FOLLOWING.kind == LeaseKind.BOOKED,
            FOLLOWING.user_id == Lease.user_id,
            FOLLOWING.node_id == Lease.node_id,
            FOLLOWING.state.in_((LeaseState.BOOKED, LeaseState.ACTIVE)),
            FOLLOWING.hold_end >= Lease.hold_end,
        ),
    )
    .where(
        Token.sha256.in_(bindparam("tokens", expanding=True)),
        Token.kind == TokenKind.NODE,
        Token.revoked_at.is_(None),
        Node.state != NodeState.RETIRED,
    )
)
AHEAD_ON = (
    select(Lease.node_id, Job.id, Lease.id, Lease.hold_start, Job.user_id)
    .join(Job, Job.user_id == Lease.user_id)
    .where(
        Lease.node_id.in_(bindparam("node_ids", expanding=True)),
        Lease.state == LeaseState.BOOKED,
        Lease.hold_start <= bindparam("until"),
        Job.lease_id.is_not(None),
        Job.state == JobState.QUEUED,
    )
)
HOSTS = select(NetworkList.owner, NetworkList.owner_id, NetworkList.hosts)
LABS = select(Membership.user_id, Membership.lab_id).where(
    Membership.user_id.in_(bindparam("user_ids", expanding=True))
)
POLICIES = select(AppliedPolicy.policy_id, AppliedPolicy.version, AppliedPolicy.applied_at).where(
    AppliedPolicy.active
)


@dataclass(frozen=True)
class Basis:
    """All that the orders of one node follow from, as it is in the database."""

    node_id: str
    rows: Sequence[AnyRow]
    """Rows of BASIS: one, without an attempt, if none is live on the node."""
    ahead: Sequence[str]
    """Jobs that wait for a lease here that begins soon."""
    granted: Sequence[str]
    """Lists of hosts, labs and policies, if a program runs or waits here."""

    @property
    def attempts(self) -> Mapping[tuple[str, int], AnyRow]:
        """Map (job id, epoch) -> a row of each attempt that is live on the node."""
        return {(one.job_id, one.epoch): one for one in self.rows if one.attempt_id is not None}

    @property
    def has_workbench(self) -> bool:
        """True if a workbench is live on the node."""
        return any(one.is_workbench for one in self.rows)

    @property
    def begins_soon(self) -> bool:
        """True if a booked lease on the node begins soon."""
        return bool(self.rows[0].begins_soon)

    def is_written(self, since: datetime) -> bool:
        """Return True if a heartbeat of the node was written after a moment."""
        seen_at = self.rows[0].last_seen_at
        return seen_at is not None and bool(seen_at > since)

    def is_settled(self, beat: Heartbeat) -> bool:
        """Return True if the orders follow from this and from what the node reports, and if the
        same report would change nothing."""
        node = self.rows[0]
        if not (beat.clean and node.clean) or beat.dirty_slots:
            return False
        if node.unreachable_since is not None or node.node_state is NodeState.PENDING:
            return False
        seen = {(one.job_id, one.epoch): one for one in beat.attempts}
        if seen.keys() != self.attempts.keys() or len(seen) != len(beat.attempts):
            return False
        return all(
            row.state in (AttemptState.RUNNING, AttemptState.STOPPING)
            and row.epoch == row.job_epoch
            and row.started_at is not None
            and row.missing_since is None
            and row.held_until is None
            and seen[key].held is None
            and row.phase is seen[key].phase is not Phase.EXITED
            for key, row in self.attempts.items()
        ) and all(row.holder in (None, row.user_id) for row in self.rows)

    def mark(self, beat: Heartbeat, quota: Quota, *, until: int) -> str:
        """Return the mark of these orders, good until a second of the epoch."""
        rows = sorted(repr(tuple(row)[2:]) for row in self.rows)  # without token and last_seen_at
        about = (RELEASE, self.node_id, until, quota, facts_of(beat))
        whole = (*about, rows, self.ahead, self.granted)
        return f"{until}-{sha256(repr(whole).encode()).hexdigest()[:40]}"


def facts_of(beat: Heartbeat) -> str:
    """Return what a node reports, without what changes all the time and no order follows from."""
    return beat.model_dump_json(
        exclude={"telemetry": True, "attempts": {"__all__": {"step", "message"}}}
    )


def good_until(now: datetime, num_nodes: int) -> int:
    """Return the second of the epoch at which a mark ends that is made now for one of so many
    nodes."""
    shortest_s = max(SHORTEST_S, num_nodes / REPEATS_PER_S)
    return int(now.timestamp() + shortest_s * random.uniform(1, SPREAD))


def end_of(mark: str) -> int:
    """Return the second of the epoch at which a mark ends; 0 for a text that is no mark."""
    until = mark.partition("-")[0]
    return int(until) if until.isascii() and until.isdigit() and len(until) < 12 else 0


def read_bases(session: Session, tokens: Sequence[str], *, now: datetime) -> dict[str, Basis]:
    """Map SHA-256 of a node's token -> basis of its orders, of the nodes that are enrolled."""
    rows: dict[str, list[AnyRow]] = {}
    until = now + AHEAD
    for row in session.execute(BASIS, {"tokens": list(tokens), "until": until}):
        rows.setdefault(row.sha256, []).append(row)
    ahead = _ahead(session, [of[0].id for of in rows.values() if of[0].begins_soon], until)
    users: dict[str, set[str]] = {}
    for token, of in rows.items():
        users[token] = {one.user_id for one in of if one.is_script or one.is_workbench}
        users[token] |= {waits.user_id for waits in ahead.get(of[0].id, ())}
    granted = _granted(session, set().union(*users.values()))
    return {
        token: Basis(
            of[0].id,
            tuple(of),
            sorted(repr(tuple(waits)) for waits in ahead.get(of[0].id, ())),
            granted if users[token] else (),
        )
        for token, of in rows.items()
    }


def _ahead(
    session: Session, node_ids: Sequence[str], until: datetime
) -> Mapping[str, Sequence[AheadRow]]:
    """Map node id -> the jobs that wait for leases on it that begin soon."""
    found: dict[str, list[AheadRow]] = {}
    if node_ids:
        for row in session.execute(AHEAD_ON, {"node_ids": node_ids, "until": until}):
            found.setdefault(row.node_id, []).append(row)
    return found


def _granted(session: Session, user_ids: set[str]) -> Sequence[str]:
    """Return what decides which hosts programs of some people reach, and when workbenches are
    idle."""
    if not user_ids:
        return ()
    rows = [*session.execute(HOSTS), *session.execute(LABS, {"user_ids": list(user_ids)})]
    return sorted(repr(tuple(row)) for row in [*rows, *session.execute(POLICIES)])
