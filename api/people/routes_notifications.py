"""/v1/me/notifications: notices to oneself, the channels chosen for them, and a test."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.people import notices
from api.people.schemas_notifications import (
    ChoicesChange,
    ChoicesView,
    NewWebhook,
    NoticeView,
    TestNotice,
    WebhookMade,
)
from api.web.auth import SignedIn
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import Limit
from core.base.clock import utc_now
from core.base.errors import BadRequest
from core.base.secret_text import new_secret
from core.notices.outward import NotOutward, target_of

router = APIRouter(prefix="/v1/me", tags=["notifications"])


@router.get("/notifications", summary="List my notices")
def list_notices(
    person: SignedIn,
    process: ProcessDep,
    limit: Limit = 50,
    after: Annotated[
        int | None, Query(ge=1, le=2**63 - 1, description="Id of the last notice seen.")
    ] = None,
) -> Page[NoticeView]:
    """Return your notices, newest first, with the state of their delivery."""
    with process.read() as session:
        return notices.list_notices(session, person, limit=limit, after=after)


@router.get("/notifications/choices", summary="Get my notice settings")
def get_choices(person: SignedIn, process: ProcessDep) -> ChoicesView:
    """Return your channels for notices: mail at once unless you have chosen otherwise."""
    with process.read() as session:
        return notices.choices_of(session, person)


@router.put("/notifications/choices", summary="Change my notice settings")
def put_choices(change: ChoicesChange, person: SignedIn, process: ProcessDep) -> ChoicesView:
    """Choose mail, webhook, one digest a day, or only the account; for all, or kind by kind.

    The new choices replace all earlier ones.
    """
    return process.transact(notices.choose, change, person)


@router.put("/webhook", summary="Set my webhook")
def put_webhook(wanted: NewWebhook, person: SignedIn, process: ProcessDep) -> WebhookMade:
    """Set the address to which your notices are posted.

    The posts are signed with a new secret, which is shown only in this answer.
    """
    try:
        target_of(wanted.url, private=process.settings.webhooks_to_private)
    except NotOutward as error:
        raise BadRequest(f"url: {error}.", code="bad_webhook", param="url") from error
    now = utc_now()
    secret = new_secret()
    process.transact(notices.set_webhook, wanted, person, secret=secret, now=now)
    return WebhookMade(url=wanted.url, secret=secret)


@router.delete("/webhook", status_code=204, summary="Delete my webhook")
def delete_webhook(person: SignedIn, process: ProcessDep) -> Response:
    """Forget your webhook. Notices that would go there are then only shown in the account."""
    now = utc_now()
    process.transact(notices.forget_webhook, person, now=now)
    return Response(status_code=204)


@router.post("/notifications/test", status_code=202, summary="Send me a test notice")
def send_test(wanted: TestNotice, person: SignedIn, process: ProcessDep) -> NoticeView:
    """Send yourself a test notice, in the way of every notice.

    The list of notices shows when it has left, or why it has not.
    """
    process.limits.count_test_notice(person.id)
    now = utc_now()
    return process.transact(notices.send_test, wanted, person, process, now=now)
