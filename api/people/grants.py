"""Exceptions to booking rules, each for one person."""

from datetime import datetime

from sqlalchemy import Select, select
from sqlalchemy.orm import Session, aliased

from api.people.schemas import GrantView, NewGrant
from api.people.users import find_user
from api.web import audit
from api.web.bells import Bells
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.paging import page
from api.web.schemas import Page
from core.base.clock import utc_now
from core.base.errors import NotFound
from core.base.ids import IdKind, new_id
from core.tables.people import Grant, User


def list_grants(
    session: Session, user: str | None, now_only: bool, *, limit: int, after: str | None
) -> Page[GrantView]:
    """Return a page of exceptions, newest first."""
    now = utc_now()
    query = _grants()
    if user is not None:
        query = query.where(User.name == user)
    if now_only:
        query = query.where(Grant.starts_at <= now, Grant.ends_at > now, Grant.revoked_at.is_(None))
    rows = page(session, query, Grant.id, after=after, limit=limit)
    return Page[GrantView](data=[_view(*row) for row in rows], has_more=rows.has_more)


def create_grant(
    session: Session,
    _: Bells,
    wanted: NewGrant,
    person: Person,
    *,
    sent: KeyedRequest,
    now: datetime,
) -> GrantView:
    """Insert an exception, once for each key."""
    grant_id = sent.begin(session)
    if grant_id is None:
        user = find_user(session, wanted.user, param="user")
        grant = Grant(
            id=new_id(IdKind.GRANT),
            user_id=user.id,
            rule=wanted.rule,
            extra=wanted.extra,
            starts_at=wanted.starts_at,
            ends_at=wanted.ends_at,
            granted_by=person.id,
            why=wanted.why,
            created_at=now,
        )
        session.add(grant)
        audit.record(
            session,
            person.id,
            "grant.make",
            grant.id,
            now=now,
            user=user.name,
            rule=wanted.rule,
            extra=wanted.extra,
            why=wanted.why,
        )
        session.flush()
        grant_id = grant.id
        sent.remember(session, grant_id)
    return _show(session, grant_id)


def revoke_grant(
    session: Session, _: Bells, grant_id: str, person: Person, *, now: datetime
) -> None:
    """End an exception. Raises NotFound."""
    grant = session.get(Grant, grant_id)
    if grant is None:
        raise NotFound(f"There is no exception {grant_id!r}.")
    if grant.revoked_at is None:
        grant.revoked_at = now
        audit.record(session, person.id, "grant.revoke", grant.id, now=now, rule=grant.rule)


def _grants() -> Select[Grant, str, str]:
    giver = aliased(User)
    return (
        select(Grant, User.name, giver.name)
        .join(User, User.id == Grant.user_id)
        .join(giver, giver.id == Grant.granted_by)
    )


def _show(session: Session, grant_id: str) -> GrantView:
    return _view(*session.execute(_grants().where(Grant.id == grant_id)).one())


def _view(grant: Grant, user: str, granted_by: str) -> GrantView:
    return GrantView(
        id=grant.id,
        user=user,
        rule=grant.rule,
        extra=grant.extra,
        starts_at=grant.starts_at,
        ends_at=grant.ends_at,
        granted_by=granted_by,
        why=grant.why,
        created_at=grant.created_at,
        revoked_at=grant.revoked_at,
    )
