"""Notices leave once, are tried again after a failure, and are not lost over a restart."""

import hmac
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import select, update

from core.base.clock import utc_now
from core.base.ids import IdKind, new_id
from core.database.database import Database
from core.notices import deliveries
from core.notices.notices import NoticeKind, notify
from core.notices.outward import NotOutward, resolve, target_of
from core.notices.words import Letter
from core.process import read_only
from core.process.settings import SchedulerSettings
from core.states import NodeState
from core.tables.kinds import (
    Channel,
    DeliveryState,
    NoticeState,
    OfferState,
    Role,
    WaitState,
)
from core.tables.leases import Offer, Wait
from core.tables.nodes import Node, NodeClass
from core.tables.notices import EVERY_KIND, ChannelChoice, Delivery, Notice, Webhook
from core.tables.people import User
from scheduler.outbox.mail import NotSent, send_mail
from scheduler.outbox.sender import NoticeSender
from scheduler.outbox.webhooks import post
from tests.scheduler.sinks import MailServer, WebServer, mail_server, slow_server, web_server

SECRET = "ty_test_secret"
HOUR = timedelta(hours=1)
MAIL = (Channel.MAIL, Channel.DIGEST)


@pytest.fixture
def mail() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


def sender(database: Database, mail: MailServer | None = None, **changes: Any) -> NoticeSender:
    """A sender as a scheduler would have it; it is asked to look by hand."""
    settings = SchedulerSettings(
        database_url=str(database.url),
        redis_url="unix:///nonexistent",
        smtp_host="127.0.0.1" if mail else "",
        smtp_port=mail.port if mail else 1,
        smtp_security=changes.pop("smtp_security", "none"),
        mail_from="trainyard@example.org",
        public_url="https://trainyard.example.org",
        webhooks_to_private=changes.pop("webhooks_to_private", True),
    )
    return NoticeSender(database, settings)


def person(database: Database, name: str = "ann", **changes: Any) -> str:
    fields: dict[str, Any] = {
        "id": new_id(IdKind.USER),
        "name": name,
        "role": Role.USER,
        "email": f"{name}@example.org",
        "zone": "America/New_York",
        "created_at": utc_now(),
    }
    with database.write() as session:
        session.add(User(**{**fields, **changes}))
    return str(fields["id"])


def tell(database: Database, user_id: str, **facts: object) -> int:
    with database.write() as session:
        facts = {"message": "Your lease ends in 15 minutes.", **facts}
        notice = notify(session, user_id, NoticeKind.LEASE_ENDING, "lease_1", facts, now=utc_now())
        session.flush()
        return notice.id


def choose(database: Database, user_id: str, channel: Channel, kind: str = EVERY_KIND) -> None:
    with database.write() as session:
        session.merge(ChannelChoice(user_id=user_id, kind=kind, channel=channel))


def call(database: Database, user_id: str, url: str) -> None:
    choose(database, user_id, Channel.WEBHOOK)
    with database.write() as session:
        session.add(Webhook(user_id=user_id, url=url, secret=SECRET, created_at=utc_now()))


def delivery(database: Database, notice_id: int) -> Delivery:
    with database.read() as session:
        return session.get_one(Delivery, notice_id)


def make_due(database: Database) -> None:
    with database.write() as session:
        session.execute(update(Delivery).values(due_at=utc_now() - timedelta(seconds=1)))


@pytest.mark.db
def test_a_notice_leaves_once_by_mail_on_the_clock_of_its_reader(
    database: Database, mail: MailServer
) -> None:
    user_id = person(database)
    notice_id = tell(database, user_id, usable_end="2025-03-09T06:55:00+00:00", node="north-01")
    ours, another = sender(database, mail), sender(database, mail)
    assert ours.look() == 1
    assert another.look() == 0
    [letter] = mail.mails
    assert letter["To"] == "ann@example.org"
    assert letter["Subject"] == "Trainyard: Your lease ends soon"
    text = letter.get_content()
    assert "Your lease ends in 15 minutes." in text
    assert "jobs stop at: Sun 09 Mar 2025, 01:55 EST (UTC-05:00)" in text
    assert "node: north-01" in text
    assert "https://trainyard.example.org/account" in text
    assert delivery(database, notice_id).state is DeliveryState.SENT
    with database.read() as session:
        notice = session.get_one(Notice, notice_id)
    assert (notice.state, notice.sent_at is not None) == (NoticeState.SENT, True)


@pytest.mark.db
def test_an_offer_lives_from_when_its_mail_has_left(
    migrated_database: Database, mail: MailServer
) -> None:
    user_id, now = person(migrated_database), utc_now()
    ids = {"wait": new_id(IdKind.WAIT), "node": new_id(IdKind.NODE), "offer": new_id(IdKind.OFFER)}
    hours = {"hold_start": now + 5 * HOUR, "hold_end": now + 6 * HOUR}
    with migrated_database.write() as session:
        session.add(NodeClass(name="cpu2", hardware={}))
        session.flush()
        session.add(
            Wait(
                id=ids["wait"], user_id=user_id, node_class="cpu2", first_start=now, hours=1,
                last_start=now, state=WaitState.OFFERED, queued_at=now, created_at=now,
            )
        )  # fmt: skip
        session.flush()
        session.add(
            Node(
                id=ids["node"], name="box", class_name="cpu2", state=NodeState.READY,
                inventory={}, clean=True, created_at=now,
            )
        )  # fmt: skip
        session.flush()
        session.add(
            Offer(
                id=ids["offer"], wait_id=ids["wait"], user_id=user_id, node_id=ids["node"],
                state=OfferState.OPEN, expires_at=now, created_at=now - HOUR, **hours,
            )
        )  # fmt: skip
        facts: dict[str, object] = {"message": "box is free."}
        notify(session, user_id, NoticeKind.BLOCK_OFFERED, ids["offer"], facts, now=now)
    sending = sender(migrated_database, mail)
    assert sending.look() == 1
    with migrated_database.read() as session:
        offer = session.get_one(Offer, ids["offer"])
    assert offer.told_at is not None
    assert offer.told_at >= now
    assert offer.expires_at == offer.told_at + timedelta(minutes=10)


@pytest.mark.db
def test_a_failure_is_tried_again_later_and_says_why_meanwhile(
    database: Database, mail: MailServer
) -> None:
    notice_id = tell(database, person(database))
    mail.refusals = [b"450 mailbox busy"]
    ours = sender(database, mail)
    assert ours.look() == 1
    waiting = delivery(database, notice_id)
    assert waiting.state is DeliveryState.WAITING
    assert "450 mailbox busy" in waiting.error
    assert waiting.due_at > utc_now()
    assert ours.look() == 0
    make_due(database)
    assert ours.look() == 1
    assert delivery(database, notice_id).state is DeliveryState.SENT
    assert len(mail.mails) == 1


def test_it_gives_up_after_some_tries_with_the_reason(migrated_database: Database) -> None:
    with mail_server() as mail:
        notice_id = tell(migrated_database, person(migrated_database))
        mail.refusals = [b"550 no such person"] * 10
        ours = sender(migrated_database, mail)
        tries = 0
        while delivery_state(migrated_database, notice_id) is DeliveryState.WAITING:
            tries += ours.look()
            make_due(migrated_database)
    given_up = delivery(migrated_database, notice_id)
    assert (given_up.state, tries) == (DeliveryState.FAILED, len(deliveries.RETRY_AFTER) + 1)
    assert given_up.error.startswith("Gave up after 6 tries. The mail server refused")
    assert mail.mails == []


def delivery_state(database: Database, notice_id: int) -> DeliveryState:
    with database.read() as session:
        found = session.get(Delivery, notice_id)
    return found.state if found else DeliveryState.WAITING


@pytest.mark.db
def test_what_a_dead_sender_had_in_hand_is_sent_by_the_next_one(
    database: Database, mail: MailServer
) -> None:
    notice_id = tell(database, person(database))
    with database.write() as session:
        deliveries.route(session, can_mail=True, now=utc_now())
    long_ago = utc_now() - deliveries.CLAIM - timedelta(seconds=1)
    with database.write() as session:
        session.execute(update(Delivery).values(due_at=long_ago))
        [lost] = deliveries.claim(session, MAIL, most=9, now=long_ago)  # and then the process dies
    assert sender(database, mail).look() == 1
    assert len(mail.mails) == 1
    with database.write() as session:  # should it have slept only, it changes nothing any more
        assert not deliveries.settle(session, lost, "too late", now=utc_now())
    assert delivery(database, notice_id).state is DeliveryState.SENT


@pytest.mark.db
def test_of_each_person_one_notice_is_in_hand_at_a_time(database: Database) -> None:
    ann, bob = person(database, "ann"), person(database, "bob")
    [first, *_] = [tell(database, ann) for _ in range(5)]
    [his] = [tell(database, bob)]
    now = utc_now()
    with database.write() as session:
        assert deliveries.route(session, can_mail=True, now=now) == 6
    with database.write() as session:
        in_hand = deliveries.claim(session, MAIL, most=9, now=now)
    assert [notice.id for parcel in in_hand for notice in parcel.notices] == [first, his]
    with database.write() as session:
        assert deliveries.claim(session, MAIL, most=9, now=now) == []
        assert deliveries.route(session, can_mail=True, now=now) == 0
        for parcel in in_hand:
            assert deliveries.settle(session, parcel, "", now=now)
    with database.write() as session:
        [next_one] = deliveries.claim(session, MAIL, most=9, now=now)
    assert next_one.notices[0].id == first + 1


@pytest.mark.db
def test_senders_that_race_send_each_notice_once(database: Database, mail: MailServer) -> None:
    user_id = person(database)
    ids = [tell(database, user_id, number=number) for number in range(24)]
    begin = threading.Barrier(6)

    def run() -> None:
        ours = sender(database, mail)
        begin.wait()
        for _ in range(3):
            ours.look()

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(letter["Message-ID"] for letter in mail.mails) == sorted(
        f"<mail-{notice_id}@example.org>" for notice_id in ids
    )


def test_a_webhook_gets_signed_notices(migrated_database: Database, web: WebServer) -> None:
    user_id = person(migrated_database)
    choose(migrated_database, user_id, Channel.WEBHOOK)
    with migrated_database.write() as session:
        session.add(Webhook(user_id=user_id, url=web.url, secret=SECRET, created_at=utc_now()))
    notice_id = tell(migrated_database, user_id)
    web.answers = [503]
    ours = sender(migrated_database)
    ours.look()
    assert delivery(migrated_database, notice_id).error == "The webhook answered 503."
    make_due(migrated_database)
    ours.look()
    assert delivery(migrated_database, notice_id).state is DeliveryState.SENT
    assert [headers["Trainyard-Notice"] for headers, _ in web.posts] == [str(notice_id)] * 2
    headers, body = web.posts[1]
    stamp, _, digest = headers["Trainyard-Signature"].removeprefix("t=").partition(",v1=")
    assert abs(int(stamp) - utc_now().timestamp()) < 60
    wanted = hmac.new(SECRET.encode(), f"{stamp}.".encode() + body, sha256).hexdigest()
    assert digest == wanted
    assert json.loads(body)["message"] == "Your lease ends in 15 minutes."


def test_slow_webhooks_hold_up_nobody_else(migrated_database: Database, web: WebServer) -> None:
    with (
        slow_server(drips=True) as dripping,
        slow_server(drips=False) as silent,
        mail_server() as mail,
    ):
        slow = []
        for name, server in (("drip", dripping), ("hole", silent)):
            user_id = person(migrated_database, name)
            call(migrated_database, user_id, server.url)
            slow += [tell(migrated_database, user_id) for _ in range(5)]
        by_mail = [tell(migrated_database, person(migrated_database, f"m{n}")) for n in range(9)]
        called = [person(migrated_database, f"w{n}") for n in range(9)]
        for user_id in called:
            call(migrated_database, user_id, web.url)
        by_web = [tell(migrated_database, user_id) for user_id in called]
        ours = sender(migrated_database, mail)
        ours.start()
        deadline = time.monotonic() + 30
        while {delivery_state(migrated_database, one) for one in by_mail + by_web} != {
            DeliveryState.SENT
        }:
            assert time.monotonic() < deadline, "the slow ones hold up the others"
            time.sleep(0.02)
        # Each slow one still has its first notice in hand, and only that.
        assert (dripping.calls, silent.calls) == (1, 1)
        assert {delivery_state(migrated_database, one) for one in slow} == {DeliveryState.WAITING}
    ours.close()


@pytest.mark.parametrize("drips", [True, False])
def test_a_webhook_has_so_many_seconds_in_all(migrated_database: Database, drips: bool) -> None:
    notice_id = tell(migrated_database, person(migrated_database))
    with migrated_database.read() as session:
        notice = session.get_one(Notice, notice_id)
    begun = time.monotonic()
    with (
        slow_server(drips=drips) as server,
        pytest.raises(NotSent, match=r"The webhook did not answer within 0\.5 s\."),
    ):
        post(server.url, secret=SECRET, notice=notice, private=True, now=utc_now(), within_s=0.5)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("drips", [True, False])
def test_a_mail_server_has_so_many_seconds_in_all(drips: bool) -> None:
    begun = time.monotonic()
    with slow_server(drips=drips) as server:
        settings = SchedulerSettings(
            database_url="", redis_url="", smtp_host="127.0.0.1", smtp_port=server.port
        )
        letter = Letter(subject="Hello", text="Hello")
        with pytest.raises(NotSent, match=r"127\.0\.0\.1 did not finish within 0\.5 s\."):
            send_mail(settings, to="ann@example.org", letter=letter, message_id="1", within_s=0.5)
    assert time.monotonic() - begun < 20


def test_a_webhook_is_not_led_elsewhere(migrated_database: Database, web: WebServer) -> None:
    user_id = person(migrated_database)
    choose(migrated_database, user_id, Channel.WEBHOOK)
    with migrated_database.write() as session:
        session.add(Webhook(user_id=user_id, url=web.url, secret=SECRET, created_at=utc_now()))
    notice_id = tell(migrated_database, user_id)
    web.answers = [302]
    sender(migrated_database).look()
    assert delivery(migrated_database, notice_id).error == "The webhook answered 302."


def test_private_addresses_are_not_called(migrated_database: Database, web: WebServer) -> None:
    user_id = person(migrated_database)
    choose(migrated_database, user_id, Channel.WEBHOOK)
    with migrated_database.write() as session:
        url = web.url.replace("http:", "https:").replace("127.0.0.1", "localhost")
        session.add(Webhook(user_id=user_id, url=url, secret=SECRET, created_at=utc_now()))
    notice_id = tell(migrated_database, user_id)
    sender(migrated_database, webhooks_to_private=False).look()
    assert "is not a public internet address" in delivery(migrated_database, notice_id).error
    assert web.posts == []


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.9.9", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "224.0.0.1", "[::1]", "[fe80::1]", "[fd00::1]", "[::ffff:127.0.0.1]",
        "[2002:7f00:1::]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b::808:808]", "[64:ff9b:1::1]",
        "[64:ff9b:1:ffff:ffff:ffff:ffff:ffff]", "[::7f00:1]", "[::808:808]", "[fec0::1]",
        "[feff::1]", "[::ffff:0:7f00:1]", "[::]",
    ],
)  # fmt: skip
def test_an_address_inside_is_refused_at_once(address: str) -> None:
    with pytest.raises(NotOutward, match="not a public internet address"):
        target_of(f"https://{address}/hook", private=False)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "[2606:4700::1111]", "[64:ff9a::1]", "[::1:0:0:1]", "[2002:808:808::]"],
)
def test_an_address_of_the_internet_is_taken(address: str) -> None:
    assert target_of(f"https://{address}/hook", private=False).host == address.strip("[]")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.org/hook", "https"),
        ("ftp://example.org/", "write it like"),
        ("https://ann:secret@example.org/", "must not contain a name and password"),
        ("https://example.org:99999/", "not a valid URL"),
        ("https://", "write it like"),
        ("https://example.org/a b", "printable ASCII characters"),
    ],
)
def test_what_is_no_webhook_is_refused(url: str, why: str) -> None:
    with pytest.raises(NotOutward, match=why):
        target_of(url, private=False)


def test_a_name_that_leads_inside_is_refused_when_it_is_called() -> None:
    target = target_of("https://localhost/hook", private=False)
    with pytest.raises(NotOutward, match="not a public internet address"):
        resolve(target, private=False)


def test_a_digest_is_one_mail_in_the_morning_of_its_reader(migrated_database: Database) -> None:
    user_id = person(migrated_database)
    choose(migrated_database, user_id, Channel.DIGEST)
    for number in range(25):
        tell(migrated_database, user_id, number=number)
    with mail_server() as mail:
        ours = sender(migrated_database, mail)
        assert ours.look() == 0
        make_due(migrated_database)
        assert ours.look() == 1
        [letter] = mail.mails
    assert letter["Subject"] == "Trainyard: 25 notices from today"
    assert letter.get_content().count("Your lease ends in 15 minutes.") == 25


@pytest.mark.parametrize(
    ("now", "zone", "at"),
    [
        ("2026-11-24T12:00", "UTC", "2026-11-25T08:00"),
        ("2026-11-24T07:59", "UTC", "2026-11-24T08:00"),
        ("2026-11-24T12:00", "America/New_York", "2026-11-24T13:00"),
        (
            "2025-03-08T20:00",
            "America/New_York",
            "2025-03-09T12:00",
        ),  # clocks go forward that night
    ],
)
def test_the_morning_is_that_of_the_persons_zone(now: str, zone: str, at: str) -> None:
    given = datetime.fromisoformat(now).replace(tzinfo=UTC)
    wanted = datetime.fromisoformat(at).replace(tzinfo=UTC)
    assert deliveries.next_digest(given, ZoneInfo(zone)) == wanted


@pytest.mark.parametrize(
    ("choice", "changes", "why"),
    [
        (Channel.OFF, {}, "Only shown here, as you chose."),
        (Channel.MAIL, {"email": None}, "No mail address is known"),
        (Channel.WEBHOOK, {}, "No webhook is set."),
        (Channel.MAIL, {"disabled": True}, "This account is disabled."),
    ],
)
def test_what_can_go_nowhere_is_kept_with_the_reason(
    migrated_database: Database, choice: Channel, changes: dict[str, Any], why: str
) -> None:
    user_id = person(migrated_database, **changes)
    choose(migrated_database, user_id, choice)
    notice_id = tell(migrated_database, user_id)
    with mail_server() as mail:
        ours = sender(migrated_database, mail)
        assert ours.look() == 0
        assert ours.look() == 0
    kept = delivery(migrated_database, notice_id)
    assert kept.state is DeliveryState.KEPT
    assert why in kept.error


def test_one_kind_may_go_another_way_than_the_rest(migrated_database: Database) -> None:
    user_id = person(migrated_database)
    choose(migrated_database, user_id, Channel.MAIL)
    choose(migrated_database, user_id, Channel.OFF, NoticeKind.LEASE_ENDING)
    tell(migrated_database, user_id)
    with migrated_database.write() as session:
        facts: dict[str, object] = {"message": "Your lease was cancelled."}
        notify(session, user_id, NoticeKind.LEASE_CANCELLED, "lease_1", facts, now=utc_now())
    with mail_server() as mail:
        sender(migrated_database, mail).look()
        assert [one["Subject"] for one in mail.mails] == ["Trainyard: Your lease was cancelled"]


def test_mail_is_not_sent_in_the_clear_by_default(migrated_database: Database) -> None:
    notice_id = tell(migrated_database, person(migrated_database))
    with mail_server() as mail:
        sender(migrated_database, mail, smtp_security="starttls").look()
        assert mail.mails == []
    assert "STARTTLS" in delivery(migrated_database, notice_id).error


def test_a_notice_that_cannot_be_written_holds_up_no_other(migrated_database: Database) -> None:
    user_id = person(migrated_database)
    broken = tell(migrated_database, user_id)
    fine = tell(migrated_database, user_id)
    with migrated_database.write() as session:
        session.execute(update(Notice).where(Notice.id == broken).values(facts={"no": "message"}))
    with mail_server() as mail:
        sender(migrated_database, mail).look()
    assert delivery(migrated_database, fine).state is DeliveryState.SENT
    assert "could not be written" in delivery(migrated_database, broken).error


def test_without_a_mail_server_notices_are_only_shown(migrated_database: Database) -> None:
    notice_id = tell(migrated_database, person(migrated_database))
    sender(migrated_database).look()
    assert delivery(migrated_database, notice_id).error == "No mail server is set up here."
    with migrated_database.read() as session:
        assert session.scalars(select(Notice.state)).one() is NoticeState.SENT


def test_nothing_leaves_while_the_platform_is_read_only(
    database: Database, mail: MailServer
) -> None:
    notice = tell(database, person(database))
    with database.write() as session:
        lasts = timedelta(minutes=10)
        read_only.begin(session, "It moves.", now=utc_now(), lasts=lasts)
    assert sender(database, mail).look() == 0
    with database.write() as session:
        assert session.get(Delivery, notice) is None
        read_only.end(session)
    assert sender(database, mail).look() == 1
    assert delivery(database, notice).state is DeliveryState.SENT
