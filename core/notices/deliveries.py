"""Delivery of notices: routing, claims by senders, and the results.

Nothing is sent in a transaction. A sender claims, sends, then settles; if it dies in between, the
claim ends and another one sends again, under the same message id, by which a receiver recognizes a
repeated mail or call. Two senders never hold one notice at a time.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from sqlalchemy import ColumnElement, exists, func, select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session

from core.database.database import insert_into
from core.tables.kinds import Channel, DeliveryState, NoticeState
from core.tables.notices import EVERY_KIND, ChannelChoice, Delivery, Notice, Webhook
from core.tables.people import User

ROUTED_AT_ONCE = 200
CLAIM = timedelta(minutes=2)  # more than sending one parcel, begun at once, can take
RETRY_AFTER = tuple(timedelta(seconds=s) for s in (30, 120, 600, 3600, 4 * 3600))
DIGEST_AT = time(8)  # on the clock of the person's zone


@dataclass(frozen=True)
class Parcel:
    """Content sent at once: one notice, or all of a person's digest."""

    user_name: str
    zone: ZoneInfo
    channel: Channel
    to: str
    """Mail address or URL."""
    secret: str
    """Secret of the webhook."""
    notices: tuple[Notice, ...]
    claimed_until: datetime


def is_anything_due(session: Session, now: datetime) -> bool:
    """Return True if `route` or `claim` would find something."""
    routed = exists().where(Delivery.notice_id == Notice.id)
    new = select(Notice.id).where(Notice.state == NoticeState.WAITING, ~routed).limit(1)
    due = select(Delivery.notice_id).where(*_is_due(now)).limit(1)
    return session.scalar(new) is not None or session.scalar(due) is not None


def route(session: Session, *, can_mail: bool, now: datetime) -> int:
    """Route every new notice as its owner has chosen; return how many there were."""
    routed = exists().where(Delivery.notice_id == Notice.id)
    notices = session.scalars(
        select(Notice)
        .where(Notice.state == NoticeState.WAITING, ~routed)
        .order_by(Notice.id)
        .limit(ROUTED_AT_ONCE)
    ).all()
    for notice in notices:
        send_by(session, notice, _chosen(session, notice), can_mail=can_mail, now=now)
    return len(notices)


def send_by(
    session: Session, notice: Notice, channel: Channel, *, can_mail: bool, now: datetime
) -> None:
    """Route one notice. If it can't be sent it is kept, with the reason."""
    user = session.get_one(User, notice.user_id)
    why = _why_not(session, user, channel, can_mail=can_mail)
    due_at = next_digest(now, ZoneInfo(user.zone)) if channel is Channel.DIGEST else now
    added = session.execute(
        insert_into(session, Delivery)
        .values(
            notice_id=notice.id,
            user_id=user.id,
            channel=channel,
            state=DeliveryState.KEPT if why else DeliveryState.WAITING,
            due_at=due_at,
            attempts=0,
            error=why,
        )
        .on_conflict_do_nothing()  # another sender may just have added it
    )
    assert isinstance(added, CursorResult)
    if why and added.rowcount:
        session.execute(update(Notice).where(Notice.id == notice.id).values(state=NoticeState.SENT))


def claim(
    session: Session, channels: Collection[Channel], *, most: int, now: datetime
) -> list[Parcel]:
    """Claim up to `most` due parcels until `now` + CLAIM.

    One of a person at a time, all senders taken together: theirs leave in order, and a slow
    receiver holds up nobody else. A digest is taken whole.
    """
    in_hand = select(Delivery.user_id).where(
        Delivery.channel.in_(channels),
        Delivery.state == DeliveryState.WAITING,
        Delivery.claimed_until > now,
    )
    place = (
        func.row_number()
        .over(partition_by=Delivery.user_id, order_by=(Delivery.due_at, Delivery.notice_id))
        .label("place")
    )
    due = (
        select(Delivery.notice_id, place)
        .where(*_is_due(now), Delivery.channel.in_(channels), Delivery.user_id.not_in(in_hand))
        .subquery()
    )
    rows = session.scalars(
        select(Delivery)
        .where(
            *_is_due(now), Delivery.notice_id.in_(select(due.c.notice_id).where(due.c.place == 1))
        )
        .order_by(Delivery.due_at, Delivery.notice_id)
        .limit(most)
        .with_for_update(skip_locked=True)
    ).all()
    digests = {row.user_id for row in rows if row.channel is Channel.DIGEST}
    if digests:
        rest = (
            Delivery.channel == Channel.DIGEST,
            Delivery.user_id.in_(digests),
            Delivery.notice_id.not_in([row.notice_id for row in rows]),
        )
        more = select(Delivery).where(*_is_due(now), *rest).with_for_update(skip_locked=True)
        rows = [*rows, *session.scalars(more)]
    until = now + CLAIM
    groups: dict[tuple[str, int], list[Delivery]] = defaultdict(list)
    for row in rows:
        row.claimed_until = until
        row.attempts += 1
        # A digest's notices form one group; every other notice is a group of its own.
        groups[row.user_id, 0 if row.channel is Channel.DIGEST else row.notice_id].append(row)
    return [_parcel(session, group, until) for group in groups.values()]


def settle(session: Session, parcel: Parcel, error: str, *, now: datetime) -> bool:
    """Record that a parcel has left, or the error and the time of the next try.

    Return False, with nothing changed, if the claim had ended and another sender has taken it up.
    """
    ids = [notice.id for notice in parcel.notices]
    rows = session.scalars(
        select(Delivery)
        .where(
            Delivery.notice_id.in_(ids),
            Delivery.state == DeliveryState.WAITING,
            Delivery.claimed_until == parcel.claimed_until,
        )
        .order_by(Delivery.notice_id)
        .with_for_update()
    ).all()
    for row in rows:
        row.claimed_until = None
        row.error = error
        if not error:
            row.state, row.sent_at = DeliveryState.SENT, now
        elif row.attempts > len(RETRY_AFTER):
            row.state = DeliveryState.FAILED
            row.error = f"Gave up after {row.attempts} tries. {error}"
        else:
            row.due_at = now + RETRY_AFTER[row.attempts - 1]
        if row.state is not DeliveryState.WAITING:
            notice = session.get_one(Notice, row.notice_id)
            left = row.state is DeliveryState.SENT
            notice.state = NoticeState.SENT if left else NoticeState.FAILED
            notice.sent_at = now if left else None
    return bool(rows)


def keep_all(session: Session, why: str, *, now: datetime) -> int:
    """Mark all waiting notices as kept: only shown, with the reason; return their number."""
    while route(session, can_mail=True, now=now):
        pass
    kept = session.scalars(
        update(Delivery)
        .where(Delivery.state == DeliveryState.WAITING)
        .values(state=DeliveryState.KEPT, error=why, claimed_until=None)
        .returning(Delivery.notice_id)
        .execution_options(synchronize_session=False)
    ).all()
    session.execute(
        update(Notice)
        .where(Notice.state == NoticeState.WAITING)
        .values(state=NoticeState.SENT)
        .execution_options(synchronize_session=False)
    )
    return len(kept)


def next_digest(now: datetime, zone: ZoneInfo) -> datetime:
    """Return the next time that DIGEST_AT is on the clock of `zone`."""
    today = now.astimezone(zone).date()
    for day in (today, today + timedelta(days=1)):
        at = datetime.combine(day, DIGEST_AT, zone).astimezone(UTC)
        if at > now:
            return at
    raise AssertionError("a day has a morning")


def _is_due(now: datetime) -> tuple[ColumnElement[bool], ...]:
    free = Delivery.claimed_until.is_(None) | (Delivery.claimed_until <= now)
    return (Delivery.state == DeliveryState.WAITING, Delivery.due_at <= now, free)


def _chosen(session: Session, notice: Notice) -> Channel:
    rows = session.execute(
        select(ChannelChoice.kind, ChannelChoice.channel).where(
            ChannelChoice.user_id == notice.user_id,
            ChannelChoice.kind.in_((notice.kind, EVERY_KIND)),
        )
    )
    chosen = {kind: channel for kind, channel in rows}
    return chosen.get(notice.kind) or chosen.get(EVERY_KIND) or Channel.MAIL


def _why_not(session: Session, user: User, channel: Channel, *, can_mail: bool) -> str:
    if user.disabled:
        return "This account is disabled."
    if channel is Channel.OFF:
        return "Only shown here, as you chose."
    if channel is Channel.WEBHOOK:
        return "" if session.get(Webhook, user.id) else "No webhook is set."
    if not can_mail:
        return "No mail server is set up here."
    return "" if user.email else "No mail address is known. Ask an administrator to add one."


def _parcel(session: Session, rows: Sequence[Delivery], until: datetime) -> Parcel:
    user = session.get_one(User, rows[0].user_id)
    channel = rows[0].channel
    webhook = session.get(Webhook, user.id) if channel is Channel.WEBHOOK else None
    notices = session.scalars(
        select(Notice).where(Notice.id.in_([row.notice_id for row in rows])).order_by(Notice.id)
    )
    return Parcel(
        user_name=user.name,
        zone=ZoneInfo(user.zone),
        channel=channel,
        to=(webhook.url if webhook else "") if channel is Channel.WEBHOOK else user.email or "",
        secret=webhook.secret if webhook else "",
        notices=tuple(notices),
        claimed_until=until,
    )
