"""/v1/me/notifications: notices to oneself, the channels chosen for them, and a test."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Response
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from api.people.schemas_notifications import (
    ChoicesChange,
    ChoicesView,
    NewWebhook,
    NoticeView,
    TestNotice,
    WebhookMade,
)
from api.web import audit
from api.web.auth import SignedIn
from api.web.credentials import new_secret
from api.web.paging import page
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import Limit
from core.base.clock import utc_now
from core.base.errors import BadRequest
from core.notices import deliveries
from core.notices.notices import NoticeKind, notify
from core.notices.outward import NotOutward, target_of
from core.notices.words import title
from core.tables.kinds import Channel, DeliveryState, NoticeState
from core.tables.notices import EVERY_KIND, Choice, Delivery, Notice, Webhook
from core.tables.people import User

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
    query = (
        select(Notice, Delivery)
        .outerjoin(Delivery, Delivery.notice_id == Notice.id)
        .where(Notice.user_id == person.id)
    )
    with process.read() as session:
        rows = page(session, query, Notice.id, after=after, limit=limit)
    return Page[NoticeView](data=[_view(*row) for row in rows], has_more=rows.has_more)


@router.get("/notifications/choices", summary="Get my notice settings")
def get_choices(person: SignedIn, process: ProcessDep) -> ChoicesView:
    """Return your channels for notices: mail at once unless you have chosen otherwise."""
    with process.read() as session:
        return _choices(session, person.id)


@router.put("/notifications/choices", summary="Change my notice settings")
def put_choices(change: ChoicesChange, person: SignedIn, process: ProcessDep) -> ChoicesView:
    """Choose mail, webhook, one digest a day, or only the account; for all, or kind by kind.

    The new choices replace all earlier ones.
    """
    with process.write() as (session, _):
        session.execute(delete(Choice).where(Choice.user_id == person.id))
        chosen = {EVERY_KIND: change.every}
        chosen |= {str(kind): channel for kind, channel in change.kinds.items()}
        session.add_all(
            Choice(user_id=person.id, kind=kind, channel=channel)
            for kind, channel in chosen.items()
        )
        session.flush()
        return _choices(session, person.id)


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
    with process.write() as (session, _):
        session.merge(Webhook(user_id=person.id, url=wanted.url, secret=secret, created_at=now))
        audit.record(session, person.id, "webhook.set", person.id, now=now, url=wanted.url)
    return WebhookMade(url=wanted.url, secret=secret)


@router.delete("/webhook", status_code=204, summary="Delete my webhook")
def delete_webhook(person: SignedIn, process: ProcessDep) -> Response:
    """Forget your webhook. Notices that would go there are then only shown in the account."""
    now = utc_now()
    with process.write() as (session, _):
        webhook = session.get(Webhook, person.id)
        if webhook is not None:
            session.delete(webhook)
            audit.record(session, person.id, "webhook.forget", person.id, now=now)
    return Response(status_code=204)


@router.post("/notifications/test", status_code=202, summary="Send me a test notice")
def send_test(wanted: TestNotice, person: SignedIn, process: ProcessDep) -> NoticeView:
    """Send yourself a test notice, in the way of every notice.

    The list of notices shows when it has left, or why it has not.
    """
    process.limits.count_test_notice(person.id)
    now = utc_now()
    with process.write() as (session, _):
        facts: dict[str, object] = {
            "message": f"If you can read this, notices reach you by {wanted.channel}.",
            "asked_at": now.isoformat(),
        }
        notice = notify(session, person.id, NoticeKind.TEST, person.id, facts, now=now)
        session.flush()
        can_mail = bool(process.settings.smtp_host)
        deliveries.send_by(session, notice, wanted.channel, can_mail=can_mail, now=now)
        session.flush()
        return _view(notice, session.get(Delivery, notice.id))


def _choices(session: Session, user_id: str) -> ChoicesView:
    user = session.get_one(User, user_id)
    rows = session.scalars(select(Choice).where(Choice.user_id == user_id))
    chosen = {row.kind: row.channel for row in rows}
    webhook = session.get(Webhook, user_id)
    return ChoicesView(
        every=chosen.pop(EVERY_KIND, Channel.MAIL),
        kinds=chosen,
        known_kinds=[str(kind) for kind in NoticeKind if kind is not NoticeKind.TEST],
        email=user.email,
        webhook=webhook.url if webhook else None,
        digest_at=f"{deliveries.DIGEST_AT:%H:%M}",
        zone=user.zone,
    )


def _view(notice: Notice, delivery: Delivery | None) -> NoticeView:
    state = delivery.state if delivery else DeliveryState.WAITING
    if delivery is None and notice.state is not NoticeState.WAITING:
        state = DeliveryState.KEPT
    waits: datetime | None = None
    if delivery is not None and state is DeliveryState.WAITING:
        waits = delivery.due_at
    return NoticeView(
        id=notice.id,
        kind=notice.kind,
        title=title(notice.kind),
        message=str(notice.facts["message"]),
        subject=notice.subject,
        channel=delivery.channel if delivery else None,
        state=state,
        attempts=delivery.attempts if delivery else 0,
        next_attempt_at=waits,
        error=delivery.error if delivery else "",
        created_at=notice.created_at,
        sent_at=delivery.sent_at if delivery else None,
    )
