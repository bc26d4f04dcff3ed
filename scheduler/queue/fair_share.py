"""Recent use of every person, as a multiple of their fair share.

Use is the slot hours of a node in leases, booked or walk-in: a job is charged by the lease that it
runs in, and a lease costs the same whether or not a job ran in it. Use a week ago counts half. A
lab's fair share of all slots is proportional to its weight; a person's is an equal part of the
lab's. A person in no lab counts as a lab of weight 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from core.states import LeaseState, NodeState
from core.tables.leases import Lease
from core.tables.nodes import Node, NodeClass
from core.tables.people import Lab, Membership
from scheduler.queue.ordering import UserShare
from strategies.plan.hardware import Hardware

HALF_LIFE = timedelta(days=7)
HORIZON = 6 * HALF_LIFE  # older use counts less than a sixtieth
KEPT_FOR = timedelta(minutes=5)  # six weeks of leases are too many to read every second
MEAN_LIFE_H = HALF_LIFE.total_seconds() / 3600 / math.log(2)

CLASSES = select(NodeClass.name, NodeClass.hardware)
NODES = (
    select(Node.class_name, func.count())
    .where(Node.state != NodeState.RETIRED)
    .group_by(Node.class_name)
)
MEMBERS = select(Membership.user_id, Membership.lab_id)
LEASES = (
    select(
        Lease.user_id,
        Lease.lab_id,
        Lease.hold_start,
        Lease.hold_end,
        Lease.ended_at,
        func.coalesce(Lease.num_slots, Node.slots),
    )
    .join(Node, Node.id == Lease.node_id)
    .where(
        Lease.state != LeaseState.CANCELLED,
        Lease.hold_start < bindparam("now"),
        Lease.hold_end > bindparam("since"),
    )
)
WEIGHTS = select(Lab.id, Lab.weight)


@dataclass(frozen=True)
class Account:
    """Use by a person as a member of one lab: slot hours, decayed."""

    user_id: str
    lab_id: str | None
    slot_h: float


def decayed_h(start: datetime, end: datetime, now: datetime) -> float:
    """Return the decayed hours from `start` to `end`: an hour a week ago counts half, a future hour
    nothing."""
    end = min(end, now)
    if end <= start:
        return 0.0
    left, used = (now - end) / HALF_LIFE, (now - start) / HALF_LIFE
    return MEAN_LIFE_H * (math.exp2(-left) - math.exp2(-used))


def standings(
    accounts: list[Account], *, slots: float, lab_weights: Mapping[str, float]
) -> dict[str, UserShare]:
    """Map user id -> standing. `slots` is the number of slots of the whole cluster.

    The whole cluster, used all the time, amounts to `slots` * MEAN_LIFE_H decayed hours. For a
    person in several labs the standing with the least usage counts.
    """
    used: dict[str, float] = {}
    people: dict[str, int] = {}
    for account in accounts:
        lab = account.lab_id or account.user_id
        used[lab] = used.get(lab, 0.0) + account.slot_h
        people[lab] = people.get(lab, 0) + 1
    weights = {lab: lab_weights.get(lab, 1.0) for lab in used}
    total, heaviest = sum(weights.values()) or 1.0, max(weights.values(), default=1.0) or 1.0
    found: dict[str, UserShare] = {}
    for account in accounts:
        lab = account.lab_id or account.user_id
        share_h = max(slots * MEAN_LIFE_H * weights[lab] / total, 1e-9)
        of_lab = used[lab] / share_h
        of_person = account.slot_h / (share_h / people[lab])
        standing = UserShare((of_lab + of_person) / 2, weights[lab] / heaviest)
        before = found.get(account.user_id)
        if before is None or standing.usage < before.usage:
            found[account.user_id] = standing
    return found


@dataclass
class FairShare:
    """Cache of the standings in this process, read again after KEPT_FOR."""

    _read_at: datetime | None = None
    _standings: dict[str, UserShare] = field(default_factory=dict)

    def standings(self, session: Session, now: datetime) -> Mapping[str, UserShare]:
        """Map user id -> standing, for each person who is in a lab or has used anything."""
        if self._read_at is None or not timedelta() <= now - self._read_at < KEPT_FOR:
            self._standings = read_standings(session, now)
            self._read_at = now
        return self._standings


def read_standings(session: Session, now: datetime) -> dict[str, UserShare]:
    """Map user id -> standing, from the leases since `now` - HORIZON and the labs of today."""
    hardware = {
        name: float(Hardware.model_validate(document).slots)
        for name, document in session.execute(CLASSES)
    }
    counts = session.execute(NODES)
    slots = sum(hardware[class_name] * count for class_name, count in counts)
    members = session.execute(MEMBERS)
    used: dict[tuple[str, str | None], float] = {(user, lab): 0.0 for user, lab in members}
    mine = {user: lab for user, lab in used}
    leases = session.execute(LEASES, {"now": now, "since": now - HORIZON})
    for user, lab, start, hold_end, ended_at, num_slots in leases:
        key = (user, lab or mine.get(user))
        hours = decayed_h(start, min(hold_end, ended_at or hold_end), now)
        used[key] = used.get(key, 0.0) + hours * num_slots
    accounts = [Account(user, lab, slot_h) for (user, lab), slot_h in used.items()]
    weights = {lab: weight for lab, weight in session.execute(WEIGHTS)}
    return standings(accounts, slots=slots, lab_weights=weights)
