"""/v1/grants: exceptions to booking rules, with their reasons, for everybody to see."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from sqlalchemy import Select, select
from sqlalchemy.orm import Session, aliased

from api.people.routes import find_user
from api.people.schemas import GrantView, NewGrant
from api.web import audit
from api.web.auth import SignedIn, StaffOnly
from api.web.idempotency import IdempotencyKey, fingerprint, once
from api.web.paging import page
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import BadRequest, NotFound
from core.base.ids import Kind, new_id
from core.policy.verdict import LIFTABLE
from core.tables.people import Grant, User

router = APIRouter(prefix="/v1/grants", tags=["people"])

WITH_LIMIT = frozenset(
    {"churn", "lab_cap", "no_shows", "overlaps_own", "too_many_open", "user_cap"}
)


@router.get("", summary="List exceptions")
def list_grants(
    person: SignedIn,
    process: ProcessDep,
    user: Annotated[
        PlainText | None, Query(description="Only exceptions for this person, by name.")
    ] = None,
    now_only: Annotated[bool, Query(description="Only exceptions that are in effect now.")] = False,
    limit: Limit = 50,
    after: After = None,
) -> Page[GrantView]:
    """Return exceptions to booking rules, newest first, each with its period, giver and reason."""
    now = utc_now()
    query = _grants()
    if user is not None:
        query = query.where(User.name == user)
    if now_only:
        query = query.where(Grant.starts_at <= now, Grant.ends_at > now, Grant.revoked_at.is_(None))
    with process.read() as session:
        rows = page(session, query, Grant.id, after=after, limit=limit)
    return Page[GrantView](data=[_view(*row) for row in rows], has_more=rows.has_more)


@router.post("", status_code=201, summary="Grant an exception")
def create_grant(
    wanted: NewGrant, person: StaffOnly, process: ProcessDep, key: IdempotencyKey = None
) -> GrantView:
    """Lift one rule for one person, for blocks that start in the given time."""
    if wanted.ends_at <= wanted.starts_at:
        raise BadRequest("ends_at: it must be after starts_at.", param="ends_at")
    if wanted.ends_at.year > 9000:
        raise BadRequest(
            f"ends_at: the year {wanted.ends_at.year} is out of range. Choose an earlier time.",
            param="ends_at",
        )
    if not wanted.rule.startswith("quota_") and wanted.rule not in LIFTABLE | WITH_LIMIT:
        raise BadRequest(
            f"rule: an exception cannot lift {wanted.rule!r}. Choose from quota_<name>, "
            f"{', '.join(sorted(LIFTABLE | WITH_LIMIT))}.",
            code="unknown_rule",
            param="rule",
        )
    now = utc_now()
    body_sha256 = fingerprint("POST", "/v1/grants", wanted.model_dump_json().encode())
    with process.write() as (session, _):

        def make() -> str:
            user = find_user(session, wanted.user, param="user")
            grant = Grant(
                id=new_id(Kind.GRANT),
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
            return grant.id

        grant_id = once(
            session, user_id=person.id, key=key, body_sha256=body_sha256, now=now, make=make
        )
        return _show(session, grant_id)


@router.delete("/{grant_id}", status_code=204, summary="Revoke an exception")
def revoke_grant(grant_id: PlainText, person: StaffOnly, process: ProcessDep) -> Response:
    """Take an exception back. Booked leases are kept.

    The exception stays in the list, with the time from which it no longer holds.
    """
    now = utc_now()
    with process.write() as (session, _):
        grant = session.get(Grant, grant_id)
        if grant is None:
            raise NotFound(f"There is no exception {grant_id!r}.")
        if grant.revoked_at is None:
            grant.revoked_at = now
            audit.record(session, person.id, "grant.revoke", grant.id, now=now, rule=grant.rule)
    return Response(status_code=204)


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
