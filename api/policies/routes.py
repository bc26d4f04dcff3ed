"""/v1/policies: the booking rules as documents, by version."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from api.policies import policy_versions
from api.policies.documents import read_document
from api.policies.schemas import PolicyPlan, PolicyText, PolicyView
from api.web.auth import SignedIn, StaffOnly
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import BadRequest

router = APIRouter(prefix="/v1/policies", tags=["policies"])

BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/yaml": {
                "schema": {"type": "string"},
                "example": "policy: {id: lab, zone: Europe/Berlin}\ngrid: {horizon_days: 14}\n",
            }
        },
    }
}


async def document_text(request: Request, person: StaffOnly) -> str:
    """Return the body as text. Raises BadRequest if it is not UTF-8."""
    body = await request.body()
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8: byte {error.start} is wrong.") from error


@router.get("", summary="List policies")
def list_policies(person: SignedIn, process: ProcessDep) -> Page[PolicyView]:
    """List the active policies, last applied first."""
    with process.read() as session:
        return policy_versions.list_policies(session)


@router.get("/{policy_id}", summary="Get a policy")
def get_policy(
    policy_id: PlainText,
    person: SignedIn,
    process: ProcessDep,
    version: Annotated[
        int | None, Query(ge=0, le=1_000_000, description="Default: the active one.")
    ] = None,
) -> PolicyText:
    """Return a version with its document, comments included, and its windows as they are now."""
    with process.read() as session:
        return policy_versions.show_policy(session, policy_id, version)


@router.get("/{policy_id}/versions", summary="List the versions of a policy")
def list_versions(
    policy_id: PlainText, person: SignedIn, process: ProcessDep, limit: Limit = 200
) -> Page[PolicyView]:
    """List every version that was applied, newest first."""
    with process.read() as session:
        return policy_versions.list_versions(session, policy_id, limit=limit)


@router.post("", openapi_extra=BODY, summary="Apply a policy")
def apply_policy(
    text: Annotated[str, Depends(document_text)],
    person: StaffOnly,
    process: ProcessDep,
    dry_run: Annotated[
        bool, Query(description="Do not apply the policy; only report its effects.")
    ] = False,
) -> PolicyPlan:
    """Put a document into force. It is validated; the answer lists what it changes and the future
    leases that it would have refused. Applying the same text again changes nothing; an old version
    may be applied again."""
    policy = read_document(text)
    now = utc_now()
    if dry_run:
        with process.read() as session:
            return policy_versions.plan(session, policy, text, now=now)
    return process.transact(policy_versions.apply, text, person, policy=policy, now=now)


@router.delete("/{policy_id}", status_code=204, summary="Withdraw a policy")
def withdraw_policy(policy_id: PlainText, person: StaffOnly, process: ProcessDep) -> Response:
    """Deactivate a policy and remove its windows. Booked leases are kept. The policy can be applied
    again."""
    now = utc_now()
    process.transact(policy_versions.withdraw, policy_id, person, now=now)
    return Response(status_code=204)
