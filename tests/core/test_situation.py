"""What the database says of people, as booking rules are told it."""

from datetime import timedelta

from sqlalchemy.orm import Session

from core.base.ids import IdKind, new_id
from core.database.database import Database
from core.leases.situation import all_bookers, member_of
from core.policy.verdict import Grant
from core.tables.kinds import Role
from core.tables.people import Grant as GrantRow
from core.tables.people import Lab, Membership, User
from tests.core.people import NOW, add_user


def add_lab(session: Session, user_id: str, name: str, *groups: str) -> str:
    lab_id = new_id(IdKind.LAB)
    session.add(Lab(id=lab_id, name=name, groups=list(groups), created_at=NOW))
    session.flush()
    session.add(Membership(lab_id=lab_id, user_id=user_id))
    return lab_id


def add_grant(session: Session, user_id: str, rule: str, *, revoked: bool = False) -> Grant:
    found = Grant(new_id(IdKind.GRANT), rule, 1, NOW, NOW + timedelta(days=1), "Was ill.")
    session.add(
        GrantRow(
            id=found.id,
            user_id=user_id,
            rule=rule,
            extra=found.extra,
            starts_at=found.start,
            ends_at=found.end,
            granted_by=user_id,
            why=found.why,
            created_at=NOW,
            revoked_at=NOW if revoked else None,
        )
    )
    return found


def test_labs_and_exceptions_are_each_counted_once_whatever_the_other_has(
    database: Database,
) -> None:
    with database.write() as session:
        ada = add_user(session)
        labs = {add_lab(session, ada, "north", "course"), add_lab(session, ada, "south", "course")}
        two = (add_grant(session, ada, "quota_main"), add_grant(session, ada, "leaves_gap"))
        add_grant(session, ada, "churn", revoked=True)
    with database.read() as session:
        found = member_of(session, ada)
    assert found.lab_ids == labs
    assert found.groups == {"north", "south", "course"}
    assert sorted(found.exceptions, key=lambda one: one.id) == sorted(two, key=lambda one: one.id)


def test_everybody_who_may_book_is_told_as_one_by_one(database: Database) -> None:
    with database.write() as session:
        ada, bob, out, staff = (add_user(session, name) for name in ("ada", "bob", "out", "sue"))
        add_lab(session, bob, "north")
        add_grant(session, bob, "quota_main")
        session.get_one(User, out).disabled = True
        session.get_one(User, staff).role = Role.STAFF
    with database.read() as session:
        found = all_bookers(session)
        assert found == [member_of(session, user_id) for user_id in sorted((ada, bob))]
