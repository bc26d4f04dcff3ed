"""Windows in which leases may lie on pools."""

from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.policies import policy_report
from api.policies.schemas import NewWindow, WindowChange, WindowPlan, WindowView
from api.web import audit
from api.web.bells import Bells
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.schemas import Page
from core.base.errors import BadRequest, Conflict, NotFound
from core.base.ids import IdKind, new_id
from core.leases.active_policies import active_policies, as_rule, lock_policy
from core.policy.checking import misfits
from core.policy.document import Policy
from core.tables.policies import PoolWindow

Orphans = Literal["keep", "cancel"]


def list_windows(session: Session, policy: str | None) -> Page[WindowView]:
    """Return the windows of one policy, or of all."""
    return Page[WindowView](data=list_of(session, policy))


def add_window(
    session: Session,
    bells: Bells,
    wanted: NewWindow,
    person: Person,
    *,
    sent: KeyedRequest,
    now: datetime,
) -> WindowView:
    """Insert a window, once for each key. Raises NotFound, Conflict."""
    made = sent.begin(session)
    if made is None:
        policy = _locked(session, wanted.policy)
        row = PoolWindow(
            id=new_id(IdKind.WINDOW),
            policy_id=policy.id,
            pools=list(wanted.pools),
            starts_at=wanted.starts_at,
            ends_at=wanted.ends_at,
            opens_at=wanted.opens_at,
            from_document=False,
            created_by=person.id,
            created_at=now,
        )
        _require_fit(policy, [*rows_of(session, policy.id), row])
        session.add(row)
        _note(session, person, "window.add", row, now=now)
        session.flush()
        made = row.id
        sent.remember(session, made)
    bells.scheduler = True
    return _view(session.get_one(PoolWindow, made))


def change_window(
    session: Session,
    bells: Bells,
    window_id: str,
    wanted: WindowChange,
    person: Person,
    *,
    now: datetime,
) -> WindowPlan:
    """Change a window if its plan was read; return the plan. Raises NotFound, Conflict."""
    row = _find(session, window_id)
    policy = _locked(session, row.policy_id)
    rows = rows_of(session, row.policy_id)
    changed = PoolWindow(
        id=row.id,
        policy_id=row.policy_id,
        pools=row.pools,
        starts_at=wanted.starts_at or row.starts_at,
        ends_at=wanted.ends_at or row.ends_at,
        opens_at=wanted.opens_at if "opens_at" in wanted.model_fields_set else row.opens_at,
        from_document=False,
    )
    after = [changed if other.id == row.id else other for other in rows]
    _require_fit(policy, after)
    plan, orphans = _plan(session, policy, changed, after, now=now)
    if wanted.plan is None:
        return plan
    _require_same(plan, wanted.plan)
    row.starts_at, row.ends_at = changed.starts_at, changed.ends_at
    row.opens_at, row.from_document = changed.opens_at, False
    cancelled = _settle(session, orphans, wanted.orphans, person, now=now)
    _note(session, person, "window.change", row, now=now, cancelled=cancelled)
    bells.scheduler = True
    return plan.model_copy(update={"applied": True, "num_cancelled": cancelled})


def delete_window(
    session: Session,
    bells: Bells,
    window_id: str,
    person: Person,
    orphans: Orphans,
    plan: str | None,
    *,
    now: datetime,
) -> WindowPlan:
    """Delete a window if its plan was read; return the plan. Raises NotFound, Conflict."""
    row = _find(session, window_id)
    policy = _locked(session, row.policy_id)
    after = [other for other in rows_of(session, row.policy_id) if other.id != row.id]
    if not after:
        raise Conflict(
            f"It is the last window of {policy.id}, and without a window every hour could "
            "be booked. Withdraw the policy, or shorten the window."
        )
    seen, left_out = _plan(session, policy, None, after, now=now)
    if plan is None:
        return seen
    _require_same(seen, plan)
    cancelled = _settle(session, left_out, orphans, person, now=now)
    _note(session, person, "window.delete", row, now=now, cancelled=cancelled)
    session.delete(row)
    bells.scheduler = True
    return seen.model_copy(update={"applied": True, "num_cancelled": cancelled})


def rows_of(session: Session, policy_id: str | None) -> Sequence[PoolWindow]:
    """Return the windows of one policy, or of all, earliest first."""
    query = select(PoolWindow).order_by(PoolWindow.starts_at, PoolWindow.id)
    if policy_id is not None:
        query = query.where(PoolWindow.policy_id == policy_id)
    return session.scalars(query).all()


def list_of(session: Session, policy_id: str | None) -> list[WindowView]:
    """Return the views of `rows_of`."""
    return [_view(row) for row in rows_of(session, policy_id)]


def add_windows(session: Session, policy: Policy, *, actor: str, now: datetime) -> None:
    """Add the windows of a document as rows."""
    for window in policy.times:
        session.add(
            PoolWindow(
                id=new_id(IdKind.WINDOW),
                policy_id=policy.id,
                pools=list(window.pools),
                starts_at=window.start,
                ends_at=window.end,
                opens_at=window.opens_at,
                from_document=True,
                created_by=actor,
                created_at=now,
            )
        )


def _find(session: Session, window_id: str) -> PoolWindow:
    row = session.get(PoolWindow, window_id)
    if row is None:
        raise NotFound(f"There is no window {window_id!r}.")
    return row


def _locked(session: Session, policy_id: str) -> Policy:
    """Return the active policy, locked: nobody books under it until this transaction ends."""
    if lock_policy(session, policy_id) is None:
        raise BadRequest(f"policy: there is no active policy {policy_id!r}.", param="policy")
    return next(policy for policy in active_policies(session) if policy.id == policy_id)


def _require_fit(policy: Policy, rows: Sequence[PoolWindow]) -> None:
    found = misfits(policy.with_windows([as_rule(row) for row in rows]))
    if found:
        raise BadRequest(f"{found[0][1][0].upper()}{found[0][1][1:]}.", param="starts_at")


def _plan(
    session: Session,
    policy: Policy,
    changed: PoolWindow | None,
    after: Sequence[PoolWindow],
    *,
    now: datetime,
) -> tuple[WindowPlan, list[policy_report.OffendingLease]]:
    smaller = policy.with_windows([as_rule(row) for row in after])
    orphans = policy_report.outside_windows(session, policy, smaller, now=now)
    window = None if changed is None else _view(changed)
    said = [window.model_dump_json() if window else "gone"]
    said += [f"{o.lease.id} {o.lease.hold_start} {o.lease.hold_end}" for o in orphans]
    plan = WindowPlan(
        window=window,
        orphans=[one.view() for one in orphans],
        hash=sha256("\n".join(said).encode()).hexdigest(),
        applied=False,
        num_cancelled=0,
    )
    return plan, orphans


def _require_same(plan: WindowPlan, seen: str) -> None:
    if plan.hash != seen:
        raise Conflict(
            "Leases were booked or cancelled since the plan was made. Read the new plan.",
            code="stale_plan",
            param="plan",
        )


def _settle(
    session: Session,
    orphans: Sequence[policy_report.OffendingLease],
    what: Orphans,
    person: Person,
    *,
    now: datetime,
) -> int:
    if what == "keep":
        return 0
    why = "the hours of its node are no longer open to booking."
    return policy_report.cancel_all(session, orphans, why=why, actor=person.id, now=now)


def _note(
    session: Session, person: Person, action: str, row: PoolWindow, *, now: datetime, **more: int
) -> None:
    audit.record(
        session,
        person.id,
        action,
        row.id,
        now=now,
        policy=row.policy_id,
        pools=row.pools,
        starts_at=row.starts_at.isoformat(),
        ends_at=row.ends_at.isoformat(),
        opens_at=row.opens_at and row.opens_at.isoformat(),
        **more,
    )


def _view(row: PoolWindow) -> WindowView:
    return WindowView(
        id=row.id,
        policy=row.policy_id,
        pools=row.pools,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        opens_at=row.opens_at,
        from_document=row.from_document,
    )
