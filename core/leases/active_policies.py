"""The active policies, read from the database, with pool windows as staff have changed them.

`policy_for` picks the policy that judges one person on one node. A transaction that books reads the
policies with `lock`: a concurrent change of a policy or window waits for the booking, or the
booking for the change.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from core.policy.document import DEFAULT, Policy, load
from core.policy.sections import WindowRule
from core.tables.policies import AppliedPolicy, PoolWindow

# Built once: every booking begins with them.
ACTIVE = select(AppliedPolicy.policy_id).where(AppliedPolicy.active)
HELD = ACTIVE.order_by(AppliedPolicy.policy_id).with_for_update(read=True)
DOCUMENTS = ACTIVE.add_columns(AppliedPolicy.document).order_by(
    AppliedPolicy.applied_at.desc(), AppliedPolicy.policy_id
)
WINDOWS = (
    select(PoolWindow)
    .where(PoolWindow.policy_id.in_(bindparam("policy_ids", expanding=True)))
    .order_by(PoolWindow.starts_at, PoolWindow.id)
)


def active_policies(session: Session, *, lock: bool = False) -> tuple[Policy, ...]:
    """Return the active policies, the last applied first. With `lock`, none changes meanwhile."""
    # The lock is a statement of its own: reads after the wait then see the newest version.
    if lock and session.scalars(HELD).first() is None:
        return ()
    documents = session.execute(DOCUMENTS).all()
    if not documents:
        return ()
    windows = defaultdict(list)
    for row in session.scalars(WINDOWS, {"policy_ids": [row.policy_id for row in documents]}):
        windows[row.policy_id].append(as_rule(row))
    return tuple(_judging(text, tuple(windows[policy_id])) for policy_id, text in documents)


def granted_under(
    session: Session, policy_id: str, version: int, active: Sequence[Policy]
) -> Policy | None:
    """Return the policy version that a lease was granted under, whether or not it is still active.

    Windows as staff changed them are not kept for a superseded version: the result has the windows
    of its own text and those of the active version. None if the version is unknown.
    """
    now = next((policy for policy in active if policy.id == policy_id), None)
    if now is not None and now.version == version:
        return now
    row = session.get(AppliedPolicy, (policy_id, version))
    if row is None:
        return DEFAULT if policy_id == DEFAULT.id else None
    policy = load(row.document)
    return policy if now is None else policy.with_windows([*policy.windows, *now.windows])


def lock_policy(session: Session, policy_id: str) -> AppliedPolicy | None:
    """Return the active version and lock it: nobody books under it until this transaction ends."""
    return session.scalars(
        select(AppliedPolicy)
        .where(AppliedPolicy.policy_id == policy_id, AppliedPolicy.active)
        .with_for_update()
    ).one_or_none()


def as_rule(row: PoolWindow) -> WindowRule:
    """Return a window as a rule of the policy document."""
    return WindowRule(
        pool=tuple(row.pools),
        usable=(row.starts_at.isoformat(), row.ends_at.isoformat()),
        opens_at="now" if row.opens_at is None else row.opens_at.isoformat(),
    )


def fingerprint(document: str) -> str:
    """Return the SHA-256 of the document, in hex."""
    return sha256(document.encode()).hexdigest()


@lru_cache(maxsize=64)
def _judging(document: str, windows: Sequence[WindowRule]) -> Policy:
    """Load a policy. Cached: a Policy remembers the days and pools that it has looked up."""
    return load(document).with_windows(windows)
