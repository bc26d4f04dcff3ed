"""Search for the leases that a clean-up is about, and for the fault of each."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from api.admin.schemas_cleanups import Selector, Wrong
from api.people.users import find_lab, find_user
from core.base.errors import NotFound
from core.base.reasons import QUOTA, ReasonCode
from core.leases.active_policies import active_policies, granted_under
from core.leases.cleaning import Removed, fewest
from core.leases.leases import no_shows
from core.leases.settlement import Settlement, of_staff_delete
from core.leases.situation import (
    counted_since,
    leases_of_labs,
    leases_of_user,
    member_of,
    ref_of,
)
from core.policy.document import Policy, policy_for
from core.policy.evaluate import evaluate
from core.policy.grid import HOUR
from core.policy.verdict import BookingRequest, Member, Reason, Situation
from core.states import LeaseState, NodeState
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.tables.people import User

OPEN = (LeaseState.BOOKED, LeaseState.ACTIVE)
CAPS = frozenset(
    {
        ReasonCode.LAB_CAP,
        ReasonCode.USER_CAP,
        ReasonCode.TOO_MANY_OPEN,
        ReasonCode.OVERLAPS_OWN,
        ReasonCode.DISTINCT_TIMES,
    }
)
# Reasons that are no fault of a lease booked already: they come from the time that has passed since
# then, or from the lease itself.
PASSING = frozenset(
    {
        ReasonCode.IN_THE_PAST,
        ReasonCode.TOO_SOON,
        ReasonCode.OUTSIDE_HORIZON,
        ReasonCode.NOT_OPEN_YET,
        ReasonCode.CHURN,
        ReasonCode.NODE_TAKEN,
        ReasonCode.NODE_DOWN,
        ReasonCode.SHARING_UNAVAILABLE,
        ReasonCode.LEAVES_GAP,
    }
)
VIOLATIONS = frozenset({Wrong.OVER_QUOTA, Wrong.UNFIT, Wrong.NO_SHOW, Wrong.IDLE})
IDLE_AFTER = timedelta(minutes=30)  # without a job, of an active lease
UNUSED_WITHIN = timedelta(days=7)
UNUSED = 2  # leases left unused within UNUSED_WITHIN
NO_SHOWS = 3  # strikes, if the policy names no number
SELECTED = "selected"


@dataclass(frozen=True)
class FaultyLease:
    """A lease with its fault, and the settlement if it is removed."""

    lease: Lease
    user: User
    node: Node
    code: str
    rule: str
    message: str
    spared: str
    """Reason that the lease is kept, as a sentence; empty if it is to be removed."""
    settlement: Settlement

    @property
    def hours(self) -> int:
        return -(-(self.lease.hold_end - self.lease.hold_start) // HOUR)

    @property
    def refund_hours(self) -> int:
        return 0 if self.settlement.counts or self.spared else self.hours


@dataclass(frozen=True)
class LeaseFault:
    """A fault of a lease: its kind, the broken rule, and a sentence."""

    code: str
    rule: str
    message: str


def find(
    session: Session,
    selector: Selector,
    *,
    why: str,
    now: datetime,
    user_ids: Iterable[str] | None = None,
) -> list[FaultyLease]:
    """Return the leases that the selector names, newest first.

    With `user_ids`, only leases of these people. `why` is the reason of the clean-up, for the
    settlement. Raises NotFound for an unknown person, lab or node.
    """
    rows = _named(session, selector, user_ids)
    faults = _Faults(session, selector, now)
    found = []
    wrong = faults.of([(lease, user, node) for lease, user, node in rows])
    for lease, user, node in rows:
        fault = wrong.get(lease.id)
        if fault is None:
            continue
        found.append(
            FaultyLease(
                lease=lease,
                user=user,
                node=node,
                code=fault.code,
                rule=fault.rule,
                message=fault.message,
                spared=_spared(lease, selector),
                settlement=of_staff_delete(
                    rule=fault.rule if fault.code in VIOLATIONS else None,
                    rules=faults.policy(lease, node).cancel,
                    why=why,
                ),
            )
        )
    return found


def version_of(lease: Lease) -> str:
    """Return a hash of all values of a lease that a preview shows or decides by."""
    seen = [
        lease.id,
        lease.state,
        lease.user_id,
        lease.node_id,
        lease.hold_start.isoformat(),
        lease.hold_end.isoformat(),
        lease.num_slots,
        lease.lab_id,
        lease.protected,
        sorted(lease.tags),
    ]
    return sha256(json.dumps(seen).encode()).hexdigest()


def hash_of(versions: Iterable[tuple[str, str, bool]]) -> str:
    """Return one hash over (lease id, row version, is to be removed) of all rows."""
    lines = [f"{lease_id} {version} {removed}\n" for lease_id, version, removed in versions]
    return sha256("".join(lines).encode()).hexdigest()


def _named(
    session: Session, selector: Selector, user_ids: Iterable[str] | None
) -> list[tuple[Lease, User, Node]]:
    where: list[ColumnElement[bool]] = [Lease.state.in_(OPEN)]
    if user_ids is not None:
        where.append(Lease.user_id.in_(list(user_ids)))
    if selector.user is not None:
        where.append(Lease.user_id == find_user(session, selector.user, param="selector.user").id)
    if selector.lab is not None:
        where.append(Lease.lab_id == find_lab(session, selector.lab).id)
    if selector.node is not None:
        where.append(Lease.node_id == _node_id(session, selector.node))
    if selector.starts_from is not None:
        where.append(Lease.hold_start >= selector.starts_from)
    if selector.starts_before is not None:
        where.append(Lease.hold_start < selector.starts_before)
    rows = session.execute(
        select(Lease, User, Node)
        .join(User, User.id == Lease.user_id)
        .join(Node, Node.id == Lease.node_id)
        .where(*where)
        .order_by(Lease.created_at.desc(), Lease.id.desc())
    )
    return [
        (lease, user, node)
        for lease, user, node in rows
        if selector.tag is None or selector.tag in lease.tags
    ]


def _node_id(session: Session, name: str) -> str:
    found = session.scalars(select(Node.id).where(Node.goes_by(name))).first()
    if found is None:
        raise NotFound(f"There is no node {name!r}.", param="selector.node")
    return found


def _spared(lease: Lease, selector: Selector) -> str:
    if lease.protected:
        return "It is protected."
    if lease.state is LeaseState.ACTIVE and not selector.include_active:
        return "It is active; active leases are spared unless you include them."
    return ""


Row = tuple[Lease, User, Node]


class _Faults:
    """Judge of leases, which reads each person's situation once."""

    def __init__(self, session: Session, selector: Selector, now: datetime) -> None:
        self._session = session
        self._selector = selector
        self._now = now
        self._policies = active_policies(session)
        self._members: dict[str, Member] = {}
        self._situations: dict[tuple[str, str, int], Situation] = {}
        self._granted: dict[tuple[str, int], Policy | None] = {}

    def of(self, rows: Sequence[Row]) -> dict[str, LeaseFault]:
        """Return the first fault of each faulty lease, by lease id."""
        wrong = self._selector.wrong
        if not wrong:
            return {
                lease.id: LeaseFault(SELECTED, SELECTED, "Selected by staff.")
                for lease, _, _ in rows
            }
        faults: dict[str, LeaseFault] = {}
        if Wrong.OVER_QUOTA in wrong:
            faults |= self._over_quota(rows)
        for lease, user, node in rows:
            found = next(self._single(lease, user, node), None)
            if found is not None and (lease.id not in faults or found.code == Wrong.ORPHAN):
                faults[lease.id] = found
        return faults

    def policy(self, lease: Lease, node: Node) -> Policy:
        """Return the policy version that the lease was granted under: it was promised then.

        For a lease that was granted under none, return the policy that holds now.
        """
        now = policy_for(self._member(lease.user_id), ref_of(node), self._policies)
        if lease.policy_id is None or lease.policy_version is None:
            return now
        key = (lease.policy_id, lease.policy_version)
        if key not in self._granted:
            self._granted[key] = granted_under(self._session, *key, self._policies)
        return self._granted[key] or now

    def _single(self, lease: Lease, user: User, node: Node) -> Iterator[LeaseFault]:
        wrong = self._selector.wrong
        if Wrong.ORPHAN in wrong:
            if user.disabled:
                yield LeaseFault(Wrong.ORPHAN, "user_deactivated", f"{user.name} is deactivated.")
            if node.state is NodeState.RETIRED:
                yield LeaseFault(Wrong.ORPHAN, "node_retired", f"{node.name} is retired.")
        broken = Wrong.EXPIRED_WINDOW in wrong or Wrong.UNFIT in wrong
        if lease.kind is LeaseKind.BOOKED and broken:
            for reason in self._reasons(lease, node, frozenset()):
                if reason.code == ReasonCode.OUTSIDE_WINDOW:
                    if Wrong.EXPIRED_WINDOW in wrong:
                        yield LeaseFault(Wrong.EXPIRED_WINDOW, reason.code, reason.message)
                elif Wrong.UNFIT in wrong and not _is_cap(reason.code):
                    yield LeaseFault(Wrong.UNFIT, reason.code, reason.message)
        if Wrong.NO_SHOW in wrong:
            yield from self._no_show(lease, user, node)
        if Wrong.IDLE in wrong:
            yield from self._idle(lease, user)

    def _over_quota(self, rows: Sequence[Row]) -> dict[str, LeaseFault]:
        """Return the fewest leases that are too many, of each person first, then of each lab."""
        faults: dict[str, LeaseFault] = {}
        for of_lab in (False, True):
            groups: dict[str | None, list[Row]] = defaultdict(list)
            for row in rows:
                if row[0].kind is LeaseKind.BOOKED and row[0].id not in faults:
                    groups[row[0].lab_id if of_lab else row[0].user_id].append(row)
            for key, group in groups.items():
                if key is not None:
                    gone = frozenset(faults)
                    faults |= self._too_many(group, gone, of_lab=of_lab)
        return faults

    def _too_many(
        self, group: Sequence[Row], gone: Removed, *, of_lab: bool
    ) -> dict[str, LeaseFault]:
        by_id = {lease.id: (lease, user, node) for lease, user, node in group}
        may_go = [lease for lease, _, _ in group if not _spared(lease, self._selector)]
        # Future leases before active ones; within each group the newest first, as they come.
        may_go.sort(key=lambda lease: lease.state is LeaseState.ACTIVE)
        order = [lease.id for lease in may_go]

        def reason(lease_id: str, removed: Removed) -> Reason | None:
            lease, _, node = by_id[lease_id]
            codes = (
                found
                for found in self._reasons(lease, node, removed | gone)
                if _is_cap(found.code) and (found.code == ReasonCode.LAB_CAP) == of_lab
            )
            return next(codes, None)

        def is_fine(removed: Removed) -> bool:
            return all(
                reason(lease_id, removed) is None for lease_id in order if lease_id not in removed
            )

        faults = {}
        for lease_id in fewest(order, is_fine):
            broken = reason(lease_id, frozenset())
            code = broken.code if broken else "quota"
            message = (
                broken.message if broken else "Together with the other leases it is over a limit."
            )
            faults[lease_id] = LeaseFault(Wrong.OVER_QUOTA, code, message)
        for lease_id in by_id:  # spared leases that are too many are shown as well
            if lease_id not in order and not is_fine(frozenset()):
                broken = reason(lease_id, frozenset())
                if broken is not None:
                    faults[lease_id] = LeaseFault(Wrong.OVER_QUOTA, broken.code, broken.message)
        return faults

    def _no_show(self, lease: Lease, user: User, node: Node) -> Iterator[LeaseFault]:
        rules = self.policy(lease, node).no_show
        after = timedelta(minutes=rules.reclaim_after_min or IDLE_AFTER / timedelta(minutes=1))
        if lease.state is LeaseState.ACTIVE:
            waited = self._now - lease.hold_start
            if node.unreachable_since is None and waited >= after and not self._has_run(lease):
                minutes = int(waited / timedelta(minutes=1))
                yield LeaseFault(
                    Wrong.NO_SHOW,
                    "no_show",
                    f"No job has started in it {minutes} minutes after its start.",
                )
            return
        since = self._now - timedelta(days=rules.within_days)
        strikes = len(no_shows(self._session, user.id, since=since))
        if strikes >= (rules.strikes or NO_SHOWS):
            yield LeaseFault(
                Wrong.NO_SHOW, "strikes", f"{user.name} did not show up {strikes} times."
            )

    def _idle(self, lease: Lease, user: User) -> Iterator[LeaseFault]:
        if lease.state is LeaseState.ACTIVE:
            if self._now - self._last_work(lease) >= IDLE_AFTER:
                minutes = int(IDLE_AFTER / timedelta(minutes=1))
                yield LeaseFault(
                    Wrong.IDLE, "idle", f"Nothing has run in it for {minutes} minutes or more."
                )
            return
        used = _parts_of(user.id).where(AttemptPart.lease_id == Lease.id).exists()
        unused = (
            self._session.scalar(
                select(func.count())
                .select_from(Lease)
                .where(
                    Lease.user_id == user.id,
                    Lease.kind == LeaseKind.BOOKED,
                    Lease.state == LeaseState.ENDED,
                    Lease.counts,
                    Lease.hold_end > self._now - UNUSED_WITHIN,
                    ~used,
                )
            )
            or 0
        )
        if unused >= UNUSED:
            yield LeaseFault(
                Wrong.IDLE, "left_unused", f"{user.name} left {unused} leases unused in 7 days."
            )

    def _reasons(self, lease: Lease, node: Node, removed: Removed) -> Iterator[Reason]:
        """Return the reasons by which a lease breaks rules of its own policy version today.

        Leases in `removed` do not count.
        """
        policy = self.policy(lease, node)
        request = BookingRequest(
            member=self._member(lease.user_id),
            node=ref_of(node),
            start=lease.hold_start,
            end=lease.hold_end,
            replaces=removed | {lease.id},
            num_slots=lease.num_slots,
        )
        verdict = evaluate(request, self._situation(lease.user_id, policy), policy, offers=0)
        return (reason for reason in verdict.reasons if reason.code not in PASSING)

    def _situation(self, user_id: str, policy: Policy) -> Situation:
        key = (user_id, policy.id, policy.version)
        if key not in self._situations:
            member = self._member(user_id)
            since = counted_since(policy, self._now)
            self._situations[key] = Situation(
                now=self._now,
                own=leases_of_user(self._session, user_id, since=since),
                lab=leases_of_labs(self._session, member.lab_ids, since=since),
            )
        return self._situations[key]

    def _member(self, user_id: str) -> Member:
        if user_id not in self._members:
            self._members[user_id] = member_of(self._session, user_id)
        return self._members[user_id]

    def _has_run(self, lease: Lease) -> bool:
        own = _parts_of(lease.user_id).where(AttemptPart.lease_id == lease.id)
        return self._session.execute(own.limit(1)).first() is not None

    def _last_work(self, lease: Lease) -> datetime:
        """Return the time when a job of its owner last ran in the lease.

        This is now if one still runs, and the start of the lease if none has run.
        """
        own = _parts_of(lease.user_id).where(AttemptPart.lease_id == lease.id)
        ends = self._session.scalars(own).all()
        return max([lease.hold_start, *(ended_at or self._now for ended_at in ends)])


def _parts_of(user_id: str) -> Select[datetime | None]:
    """Select the end of each part of this person's jobs (None: it runs), without guests' jobs."""
    return (
        select(AttemptPart.ended_at)
        .join(Attempt, Attempt.id == AttemptPart.attempt_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(Job.user_id == user_id)
    )


def _is_cap(code: str) -> bool:
    return code in CAPS or code.startswith(QUOTA)
