"""Lists of people against the people who are known: new, different, clashing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.people import letters
from api.people.people_import import Mistake, PersonLine
from api.people.schemas import ImportRow, ImportView
from api.people.users import password_link
from api.web import audit
from api.web.bells import Bells
from api.web.errors import InvalidRequest
from api.web.identity import Person
from api.web.process import Process
from api.web.schemas import ProblemItem
from core.base.ids import IdKind, new_id
from core.tables.kinds import Role
from core.tables.people import Lab, Membership, User

LINKS_LIVE = timedelta(days=14)
MAX_SHOWN = 100


def write(
    session: Session,
    _: Bells,
    people: Sequence[PersonLine],
    person: Person,
    process: Process,
    *,
    links: bool,
    mail: bool = False,
    now: datetime,
) -> ImportView:
    """Add new people and labs, and change fields that differ. Raises InvalidRequest for clashes."""
    known = _known(session, people)
    refuse(_clashes(people, known))
    labs = _new_labs(people, known)
    for name in labs:
        known.labs[name] = Lab(id=new_id(IdKind.LAB), name=name, created_at=now)
        session.add(known.labs[name])
    session.flush()
    rows = []
    for listed in people:
        row = _row(listed, known)
        user = _write(session, listed, row, known, now)
        if links and row.action == "add":
            link = password_link(session, process, user, maker=person, lifetime=LINKS_LIVE)
            row = row.model_copy(update={"password_link": link.url})
        if mail and row.action == "add" and user.email is not None:
            letters.post_password(session, process, user, person, lifetime=LINKS_LIVE, now=now)
        rows.append(row)
    answer = _answer(rows, labs, dry_run=False)
    if answer.added or answer.changed or labs:
        audit.record(
            session,
            person.id,
            "user.import",
            "users",
            now=now,
            added=[row.name for row in rows if row.action == "add"],
            changed={row.name: row.changes for row in rows if row.action == "change"},
            labs=labs,
        )
    return answer


@dataclass
class ExistingPeople:
    """People, mail addresses, labs and memberships that exist already."""

    users: dict[str, User]
    emails: dict[str, str]
    labs: dict[str, Lab]
    members: set[tuple[str, str]]


def refuse(mistakes: Sequence[Mistake]) -> None:
    """Raise InvalidRequest if there are mistakes; it names each by line and column."""
    if mistakes:
        items = [
            ProblemItem(
                param=f"line {mistake.line}, {mistake.column}"
                if mistake.column
                else f"line {mistake.line}",
                code="bad_line",
                message=f"line {mistake.line}, {mistake.column or 'whole line'}: {mistake.message}",
            )
            for mistake in sorted(mistakes, key=lambda m: m.line)[:MAX_SHOWN]
        ]
        raise InvalidRequest(items, code="bad_list")


def _known(session: Session, people: Sequence[PersonLine]) -> ExistingPeople:
    users = {user.name: user for user in session.scalars(select(User))}
    rows = session.execute(select(Membership.lab_id, Membership.user_id))
    return ExistingPeople(
        users=users,
        emails={user.email: user.name for user in users.values() if user.email},
        labs={lab.name: lab for lab in session.scalars(select(Lab))},
        members={(lab_id, user_id) for lab_id, user_id in rows},
    )


def _clashes(people: Sequence[PersonLine], known: ExistingPeople) -> list[Mistake]:
    """Return conflicts with existing people, although each line is right in itself."""
    mistakes = []
    for listed in people:
        holder = known.emails.get(listed.email or "")
        if holder is not None and holder != listed.name:
            sentence = f"{listed.email} already belongs to {holder}."
            mistakes.append(Mistake(listed.line, "email", sentence))
        user = known.users.get(listed.name)
        if user is not None and listed.role not in (None, user.role):
            sentence = (
                f"{user.name} already has the role {user.role}, and an import does not change "
                "roles. Use `trainyard admin set-role`."
            )
            mistakes.append(Mistake(listed.line, "role", sentence))
    return mistakes


def _new_labs(people: Sequence[PersonLine], known: ExistingPeople) -> list[str]:
    return sorted({p.lab for p in people if p.lab is not None and p.lab not in known.labs})


def _row(listed: PersonLine, known: ExistingPeople) -> ImportRow:
    user = known.users.get(listed.name)
    changes: list[str] = []
    if user is not None:
        if listed.email not in (None, user.email):
            changes.append("email")
        if listed.zone not in (None, user.zone):
            changes.append("zone")
        lab = known.labs.get(listed.lab or "")
        if listed.lab is not None and (lab is None or (lab.id, user.id) not in known.members):
            changes.append("lab")
        changes += [
            name for name, value in listed.attributes.items() if user.attributes.get(name) != value
        ]
    action = "add" if user is None else "change" if changes else "same"
    return ImportRow.model_validate(
        {
            "line": listed.line,
            "name": listed.name,
            "action": action,
            "changes": changes,
            "password_link": None,
        }
    )


def _write(
    session: Session, listed: PersonLine, row: ImportRow, known: ExistingPeople, now: datetime
) -> User:
    user = known.users.get(listed.name)
    if user is None:
        user = User(
            id=new_id(IdKind.USER),
            name=listed.name,
            role=listed.role or Role.USER,
            password_hash=None,
            zone=listed.zone or "UTC",
            email=listed.email,
            attributes=listed.attributes,
            disabled=False,
            created_at=now,
        )
        session.add(user)
        session.flush()
    elif row.action == "change":
        user.email = listed.email or user.email
        user.zone = listed.zone or user.zone
        user.attributes = {**user.attributes, **listed.attributes}
    if listed.lab is not None and (known.labs[listed.lab].id, user.id) not in known.members:
        session.add(Membership(lab_id=known.labs[listed.lab].id, user_id=user.id))
    return user


def _answer(rows: Sequence[ImportRow], labs: Sequence[str], *, dry_run: bool) -> ImportView:
    count = {name: sum(row.action == name for row in rows) for name in ("add", "change", "same")}
    return ImportView(
        dry_run=dry_run,
        added=count["add"],
        changed=count["change"],
        same=count["same"],
        labs=list(labs),
        rows=list(rows),
    )


def preview(session: Session, people: Sequence[PersonLine]) -> ImportView:
    """Return what `write` would do. Raises InvalidRequest for clashes with known people."""
    known = _known(session, people)
    refuse(_clashes(people, known))
    rows = [_row(listed, known) for listed in people]
    return _answer(rows, _new_labs(people, known), dry_run=True)
