"""Versions of policies: their rows, and their coming into force."""

from datetime import datetime

from sqlalchemy import Select, delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api.policies import policy_report
from api.policies.pool_windows import add_windows, list_of, rows_of
from api.policies.schemas import PolicyPlan, PolicyText, PolicyView
from api.web import audit
from api.web.bells import Bells
from api.web.identity import Person
from api.web.schemas import Page
from core.base.errors import Conflict, NotFound
from core.leases.active_policies import active_policies, fingerprint, lock_policy
from core.leases.situation import ref_of
from core.notices.notices import NoticeKind
from core.policy.advice import advice
from core.policy.changes import changes
from core.policy.document import Policy, load
from core.policy.sections import InFlight
from core.states import NodeState
from core.tables.nodes import Node
from core.tables.people import Lab, User
from core.tables.policies import AppliedPolicy, PoolWindow


def list_policies(session: Session) -> Page[PolicyView]:
    """Return the active policies, last applied first."""
    query = _versions().where(AppliedPolicy.active).order_by(AppliedPolicy.applied_at.desc())
    rows = session.execute(query).all()
    return Page[PolicyView](data=[_view(*row) for row in rows])


def show_policy(session: Session, policy_id: str, version: int | None) -> PolicyText:
    """Return a version with its document and windows. Raises NotFound."""
    query = _versions().where(AppliedPolicy.policy_id == policy_id)
    if version is None:
        query = query.where(AppliedPolicy.active)
    else:
        query = query.where(AppliedPolicy.version == version)
    row = session.execute(query).one_or_none()
    if row is None:
        which = "active version" if version is None else f"version {version}"
        raise NotFound(f"There is no {which} of policy {policy_id!r}.")
    policy, name = row
    windows = list_of(session, policy_id) if policy.active else []
    return PolicyText(**_view(policy, name).model_dump(), document=policy.document, windows=windows)


def list_versions(session: Session, policy_id: str, *, limit: int) -> Page[PolicyView]:
    """Return the versions of a policy, newest first."""
    query = _versions().where(AppliedPolicy.policy_id == policy_id)
    query = query.order_by(AppliedPolicy.version.desc()).limit(limit)
    rows = session.execute(query).all()
    return Page[PolicyView](data=[_view(*row) for row in rows])


def apply(
    session: Session,
    bells: Bells,
    text: str,
    person: Person,
    *,
    policy: Policy,
    now: datetime,
) -> PolicyPlan:
    """Put a policy into force; return its changes."""
    lock_policy(session, policy.id)
    plan = _apply(session, policy, text, person, now=now)
    bells.scheduler = True
    return plan


def withdraw(
    session: Session, bells: Bells, policy_id: str, person: Person, *, now: datetime
) -> None:
    """Deactivate a policy and remove its windows. Raises NotFound."""
    row = lock_policy(session, policy_id)
    if row is None:
        raise NotFound(f"There is no active policy {policy_id!r}.")
    row.active = False
    session.execute(delete(PoolWindow).where(PoolWindow.policy_id == policy_id))
    audit.record(session, person.id, "policy.withdraw", policy_id, now=now, version=row.version)
    bells.scheduler = True


def plan(session: Session, policy: Policy, text: str, *, now: datetime) -> PolicyPlan:
    """Return the changes that a policy would make, and the leases that it would have refused."""
    refused = _refused(session, policy, now=now)
    return _answer(session, policy, text, refused, now=now, applied=False, num_cancelled=0)


def _apply(
    session: Session, policy: Policy, text: str, person: Person, *, now: datetime
) -> PolicyPlan:
    refused = _refused(session, policy, now=now)
    plan = _answer(session, policy, text, refused, now=now, applied=True, num_cancelled=0)
    _put_into_force(session, policy, text, person, now=now)
    why = f"version {policy.version} of policy {policy.id} does not allow it. "
    num_cancelled = 0
    if policy.policy.in_flight is InFlight.CANCEL_WITH_REFUND:
        for one in refused:
            num_cancelled += policy_report.cancel_all(
                session, [one], why=why + one.message, actor=person.id, now=now
            )
    elif policy.policy.in_flight is InFlight.FLAG:
        for one in refused:
            message = f"it stays, although {why}{one.message}"
            policy_report.tell(session, one, message, NoticeKind.LEASE_FLAGGED, now=now)
    audit.record(
        session,
        person.id,
        "policy.apply",
        policy.id,
        now=now,
        version=policy.version,
        replaces=plan.replaces,
        sha256=fingerprint(text),
        refused=[one.lease.id for one in refused][: policy_report.SHOWN],
        cancelled=num_cancelled,
    )
    return plan.model_copy(update={"num_cancelled": num_cancelled})


def _refused(
    session: Session, policy: Policy, *, now: datetime
) -> list[policy_report.OffendingLease]:
    others = [other for other in active_policies(session) if other.id != policy.id]
    return policy_report.refused_under(session, policy, others, now=now)


def _answer(
    session: Session,
    policy: Policy,
    text: str,
    refused: list[policy_report.OffendingLease],
    *,
    now: datetime,
    applied: bool,
    num_cancelled: int,
) -> PolicyPlan:
    active = next((old for old in active_policies(session) if old.id == policy.id), None)
    _require_next(session, policy, text, active)
    nodes = session.scalars(select(Node).where(Node.state != NodeState.RETIRED))
    labs = session.scalars(select(Lab.name)).all()
    return PolicyPlan(
        id=policy.id,
        version=policy.version,
        replaces=None if active is None else active.version,
        applied=applied,
        changes=_changes(active, policy) if active else ["New policy."],
        advice=advice(policy, [ref_of(node) for node in nodes], now, labs=labs),
        in_flight=policy.policy.in_flight,
        refused=[one.view() for one in refused[: policy_report.SHOWN]],
        num_refused=len(refused),
        num_cancelled=num_cancelled,
    )


def _changes(active: Policy, policy: Policy) -> list[str]:
    """Return the changes of the rules; windows count only if their times differ, not their
    wording."""
    is_same = active.times == policy.times
    return changes(active, policy.with_windows(active.windows) if is_same else policy)


def _require_next(session: Session, policy: Policy, text: str, active: Policy | None) -> None:
    """Require that a version's text never changes and that versions only rise; an old one may
    return."""
    supersedes = policy.policy.supersedes
    if supersedes is not None and (active is None or active.version != supersedes):
        there = "none is active" if active is None else f"version {active.version} is active"
        raise Conflict(
            f"It supersedes version {supersedes}, but {there}.", param="policy.supersedes"
        )
    known = session.get(AppliedPolicy, (policy.id, policy.version))
    newest = session.scalar(
        select(func.max(AppliedPolicy.version)).where(AppliedPolicy.policy_id == policy.id)
    )
    if known is not None and known.sha256 != fingerprint(text):
        raise Conflict(
            f"Version {policy.version} of {policy.id} was already applied with a different "
            f"text. Write version: {(newest or 0) + 1}.",
            param="policy.version",
        )
    if known is None and newest is not None and policy.version < newest:
        raise Conflict(
            f"Version {newest} of {policy.id} already exists. Write version: {newest + 1}.",
            param="policy.version",
        )


def _put_into_force(
    session: Session, policy: Policy, text: str, person: Person, *, now: datetime
) -> None:
    active = session.scalars(
        select(AppliedPolicy).where(AppliedPolicy.policy_id == policy.id, AppliedPolicy.active)
    ).one_or_none()
    if active is not None:
        active.active = False
        session.flush()
    row = session.get(AppliedPolicy, (policy.id, policy.version))
    if row is None:
        row = AppliedPolicy(
            policy_id=policy.id,
            version=policy.version,
            document=text,
            sha256=fingerprint(text),
            active=True,
            applied_by=person.id,
            applied_at=now,
        )
        session.add(row)
    else:
        row.active, row.applied_by, row.applied_at = True, person.id, now
    try:
        session.flush()
    except IntegrityError as error:
        raise Conflict(
            f"Somebody else has just applied {policy.id}. Read that version first."
        ) from error
    for window in rows_of(session, policy.id):
        session.delete(window)
    add_windows(session, policy, actor=person.id, now=now)


def _versions() -> Select[AppliedPolicy, str]:
    return select(AppliedPolicy, User.name).join(User, User.id == AppliedPolicy.applied_by)


def _view(policy: AppliedPolicy, applied_by: str) -> PolicyView:
    return PolicyView(
        id=policy.policy_id,
        version=policy.version,
        active=policy.active,
        zone=load(policy.document).policy.zone,
        sha256=policy.sha256,
        applied_by=applied_by,
        applied_at=policy.applied_at,
    )
