"""A notice is a row of the transaction that made it true."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.database.database import Database
from core.notices.notices import NoticeKind, notify
from core.notices.words import TITLES
from core.tables.kinds import NoticeState
from core.tables.notices import Notice
from tests.core.people import NOW, add_user

FACTS: dict[str, object] = {"message": "Your lease ends at 15:00 UTC.", "ends": NOW.isoformat()}


def test_every_kind_has_a_title() -> None:
    assert set(TITLES) == set(NoticeKind)


def test_a_notice_waits_to_be_sent_with_its_facts(database: Database) -> None:
    with database.write() as session:
        user_id = add_user(session)
        notify(session, user_id, NoticeKind.LEASE_ENDING, "lease_1", FACTS, now=NOW)
    with database.read() as session:
        notice = session.scalars(select(Notice)).one()
    assert (notice.user_id, notice.subject, notice.facts) == (user_id, "lease_1", FACTS)
    assert (notice.state, notice.sent_at) == (NoticeState.WAITING, None)
    assert NoticeKind(notice.kind) is NoticeKind.LEASE_ENDING


def test_what_was_rolled_back_tells_nobody(migrated_sqlite_database: Database) -> None:
    database = migrated_sqlite_database
    with database.write() as session:
        user_id = add_user(session)
    session = Session(database.engine)
    notify(session, user_id, NoticeKind.LEASE_ENDING, "lease_1", FACTS, now=NOW)
    session.flush()
    session.close()
    with database.read() as session:
        assert session.scalars(select(Notice)).all() == []
