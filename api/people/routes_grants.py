"""/v1/grants: exceptions to booking rules, with their reasons, for everybody to see."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.people import grants
from api.people.schemas import GrantView, NewGrant
from api.web.auth import SignedIn, StaffOnly
from api.web.idempotency import IdempotencyKey, keyed
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import BadRequest
from core.policy.verdict import LIFTABLE

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
    with process.read() as session:
        return grants.list_grants(session, user, now_only, limit=limit, after=after)


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
    sent = keyed(person, key, "/v1/grants", wanted.model_dump_json().encode())
    return process.transact(grants.create_grant, wanted, person, now=now, sent=sent)


@router.delete("/{grant_id}", status_code=204, summary="Revoke an exception")
def revoke_grant(grant_id: PlainText, person: StaffOnly, process: ProcessDep) -> Response:
    """Take an exception back. Booked leases are kept.

    The exception stays in the list, with the time from which it no longer holds.
    """
    now = utc_now()
    process.transact(grants.revoke_grant, grant_id, person, now=now)
    return Response(status_code=204)
