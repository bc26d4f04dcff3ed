"""Letters with links: the link is made when the letter leaves, works once, and is kept nowhere."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from core.base.clock import utc_now
from core.base.ids import IdKind, new_id
from core.base.secret_text import digest
from core.database.database import Database
from core.notices import link_letters
from core.process.settings import SchedulerSettings
from core.tables.kinds import LetterKind, LinkKind, Role
from core.tables.notices import LinkLetter
from core.tables.people import Invite, Link, User
from scheduler.outbox.link_sender import LinkSender
from tests.scheduler.sinks import MailServer, mail_server

pytestmark = pytest.mark.db
URL = "https://trainyard.example.org"
DAY = timedelta(days=1)


@pytest.fixture
def mail() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


def sender(database: Database, mail: MailServer) -> LinkSender:
    settings = SchedulerSettings(
        database_url=str(database.url),
        redis_url="unix:///nonexistent",
        smtp_host="127.0.0.1",
        smtp_port=mail.port,
        smtp_security="none",
        mail_from="trainyard@example.org",
    )
    return LinkSender(database, settings)


def add(database: Database, row: Any) -> str:
    with database.write() as session:
        session.add(row)
        session.flush()
        return str(row.id)


def person(database: Database, name: str) -> str:
    now = utc_now()
    user = User(
        id=new_id(IdKind.USER),
        name=name,
        role=Role.USER,
        email=f"{name}@example.org",
        zone="America/New_York",
        created_at=now,
    )
    return add(database, user)


def post(database: Database, kind: LetterKind, address: str, invite: str | None = None) -> None:
    now = utc_now()
    with database.write() as session:
        link_letters.post(
            session, kind, address, url=URL, expires_at=now + DAY, now=now, invite_id=invite
        )


def rows(database: Database) -> list[LinkLetter]:
    with database.read() as session:
        return list(session.scalars(select(LinkLetter).order_by(LinkLetter.id)))


def secret_in(mail: Any) -> str:
    found = re.search(r"secret=(ty_\S+)", mail.get_content())
    assert found is not None, mail.get_content()
    return found[1]


def test_a_password_link_is_made_when_it_leaves_and_its_secret_is_kept_nowhere(
    database: Database, mail: MailServer
) -> None:
    ann = person(database, "ann")
    post(database, LetterKind.PASSWORD, "Ann@example.org")
    assert sender(database, mail).look() == 1
    assert sender(database, mail).look() == 0
    (letter,) = mail.mails
    assert letter["To"] == "ann@example.org"
    assert f"{URL}/new-password?secret=ty_" in letter.get_content()
    assert "America/New_York" not in letter.get_content()
    secret = secret_in(letter)
    with database.read() as session:
        link = session.get_one(Link, digest(secret))
        assert (link.kind, link.user_id, link.used_at) == (LinkKind.PASSWORD, ann, None)
    (row,) = rows(database)
    assert (row.done, row.error) == (True, "")
    assert secret not in str(vars(row))


def test_nothing_is_mailed_to_an_address_that_nobody_has(
    database: Database, mail: MailServer
) -> None:
    post(database, LetterKind.PASSWORD, "nobody@example.org")
    assert sender(database, mail).look() == 0
    assert mail.mails == []
    assert [(row.done, row.error) for row in rows(database)] == [(True, "Nobody has this address.")]


def test_a_letter_that_is_refused_is_tried_again_with_a_new_link(
    database: Database, mail: MailServer
) -> None:
    person(database, "ann")
    post(database, LetterKind.PASSWORD, "ann@example.org")
    mail.refusals.append(b"451 later")
    assert sender(database, mail).look() == 1
    (row,) = rows(database)
    assert (row.done, "451 later" in row.error) == (False, True)
    assert sender(database, mail).look() == 0, "it is not due yet"
    with database.write() as session:
        session.execute(update(LinkLetter).values(due_at=utc_now()))
    assert sender(database, mail).look() == 1
    assert len(mail.mails) == 1
    assert rows(database)[0].done


def test_an_invitation_gets_the_link_of_its_letter_and_none_once_it_is_used(
    database: Database, mail: MailServer
) -> None:
    ann, now = person(database, "ann"), utc_now()

    def invite(**changes: Any) -> str:
        fields: dict[str, Any] = {
            "id": new_id(IdKind.INVITE),
            "sha256": digest(new_id(IdKind.INVITE)),
            "email": "new@example.org",
            "attributes": {},
            "invited_by": ann,
            "created_at": now,
            "expires_at": now + DAY,
        }
        return add(database, Invite(**{**fields, **changes}))

    open_one, used = invite(), invite(used_at=now)
    for one in (open_one, used):
        post(database, LetterKind.INVITATION, "new@example.org", one)
    assert sender(database, mail).look() == 1
    (letter,) = mail.mails
    assert f"{URL}/invite?secret=ty_" in letter.get_content()
    with database.read() as session:
        assert session.get_one(Invite, open_one).sha256 == digest(secret_in(letter))
    assert [row.error for row in rows(database)] == [
        "",
        "The invitation has been used or taken back.",
    ]


def test_two_senders_never_hold_one_letter(database: Database) -> None:
    person(database, "ann")
    post(database, LetterKind.PASSWORD, "ann@example.org")
    with database.write() as session:
        first = link_letters.claim(session, now=utc_now())
    assert first is not None
    with database.write() as session:
        assert link_letters.claim(session, now=utc_now()) is None
        later = utc_now() + timedelta(minutes=5)
        second = link_letters.claim(session, now=later)
        assert second is not None, "the first one died"
        link_letters.settle(session, first, "", now=later)
        assert not session.scalars(select(LinkLetter)).one().done
        link_letters.settle(session, second, "", now=later)
        assert session.scalars(select(LinkLetter)).one().done


def test_addresses_are_not_kept_for_ever(database: Database, mail: MailServer) -> None:
    post(database, LetterKind.PASSWORD, "nobody@example.org")
    sender(database, mail).look()
    with database.write() as session:
        session.execute(update(LinkLetter).values(created_at=utc_now() - 31 * DAY))
    post(database, LetterKind.PASSWORD, "somebody@example.org")
    assert [row.address for row in rows(database)] == ["somebody@example.org"]
