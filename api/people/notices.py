"""Notices to people, and their channels."""

from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from api.people.schemas_notifications import (
    ChoicesChange,
    ChoicesView,
    NewWebhook,
    NoticeView,
    TestNotice,
)
from api.web import audit
from api.web.bells import Bells
from api.web.identity import Person
from api.web.paging import page
from api.web.process import Process
from api.web.schemas import Page
from core.notices import deliveries
from core.notices.notices import NoticeKind, notify
from core.notices.words import page_of, title
from core.tables.kinds import Channel, DeliveryState, NoticeState
from core.tables.notices import EVERY_KIND, ChannelChoice, Delivery, Notice, Webhook
from core.tables.people import User


def list_notices(
    session: Session, person: Person, *, limit: int, after: int | None
) -> Page[NoticeView]:
    """Return a page of a person's notices, newest first."""
    query = (
        select(Notice, Delivery)
        .outerjoin(Delivery, Delivery.notice_id == Notice.id)
        .where(Notice.user_id == person.id)
    )
    rows = page(session, query, Notice.id, after=after, limit=limit)
    return Page[NoticeView](data=[_view(*row) for row in rows], has_more=rows.has_more)


def choices_of(session: Session, person: Person) -> ChoicesView:
    """Return a person's channels."""
    return _choices(session, person.id)


def choose(session: Session, _: Bells, change: ChoicesChange, person: Person) -> ChoicesView:
    """Replace a person's choices of channels."""
    session.execute(delete(ChannelChoice).where(ChannelChoice.user_id == person.id))
    chosen = {EVERY_KIND: change.every}
    chosen |= {str(kind): channel for kind, channel in change.kinds.items()}
    session.add_all(
        ChannelChoice(user_id=person.id, kind=kind, channel=channel)
        for kind, channel in chosen.items()
    )
    session.flush()
    return _choices(session, person.id)


def set_webhook(
    session: Session, _: Bells, wanted: NewWebhook, person: Person, *, secret: str, now: datetime
) -> None:
    """Set the address to which a person's notices are posted."""
    session.merge(Webhook(user_id=person.id, url=wanted.url, secret=secret, created_at=now))
    audit.record(session, person.id, "webhook.set", person.id, now=now, url=wanted.url)


def forget_webhook(session: Session, _: Bells, person: Person, *, now: datetime) -> None:
    """Delete a person's webhook, if there is one."""
    webhook = session.get(Webhook, person.id)
    if webhook is not None:
        session.delete(webhook)
        audit.record(session, person.id, "webhook.forget", person.id, now=now)


def send_test(
    session: Session,
    _: Bells,
    wanted: TestNotice,
    person: Person,
    process: Process,
    *,
    now: datetime,
) -> NoticeView:
    """Insert a test notice that leaves by the channel in question."""
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
    rows = session.scalars(select(ChannelChoice).where(ChannelChoice.user_id == user_id))
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
        page=page_of(notice),
        channel=delivery.channel if delivery else None,
        state=state,
        attempts=delivery.attempts if delivery else 0,
        next_attempt_at=waits,
        error=delivery.error if delivery else "",
        created_at=notice.created_at,
        sent_at=delivery.sent_at if delivery else None,
    )
