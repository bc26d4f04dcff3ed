"""The course: its rules, its nodes and its 191 students, each signed in."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import httpx2
from sqlalchemy import select

from api.web.credentials import SESSION_IDLE, issue_token
from api.web.passwords import hash_password
from benchmarks.course.houses import House
from benchmarks.course.records import Records
from benchmarks.course.wire import Line
from benchmarks.nodes import FakeNode, enrol
from core.base.clock import utc_now
from core.database.database import Database
from core.policy.document import Policy, load
from core.tables.kinds import Scope, TokenKind
from core.tables.people import User

COURSE = Path(__file__).parents[2] / "examples" / "policies" / "course.yaml"
GROUP, DAYS = "course-s25", 12  # of the windows, from yesterday on
PASSWORD = "correct horse battery"
ASSISTANTS = 7


@dataclass(frozen=True)
class Person:
    """A user who is signed in."""

    name: str
    secret: str
    """Secret of the user's session."""


@dataclass(frozen=True)
class Course:
    """Rules, people and nodes of the course before the first click."""

    policy: Policy
    students: Sequence[Person]
    assistants: Sequence[Person]
    """Users with the role staff."""
    nodes: Sequence[FakeNode]


def rules(opens_at: datetime, now: datetime) -> str:
    """Return the course's policy document with its windows moved to today, opening at
    `opens_at`."""
    text = COURSE.read_text(encoding="utf-8")
    zone = ZoneInfo("America/New_York")
    first = now.astimezone(zone).date() - timedelta(days=1)
    last = first + timedelta(days=DAYS)
    for day in ("2025-02-10", "2025-02-20"):
        text = text.replace(f'usable: ["{day}T00:00"', f'usable: ["{first}T00:00"')
    text = text.replace('"2025-02-28T00:00"]', f'"{last}T00:00"]')
    opens = f'opens_at: "{opens_at.isoformat(timespec="seconds")}"'
    text = text.replace('opens_at: "2025-02-20T00:00"', "opens_at: now")
    return text.replace("opens_at: now}", f"{opens}}}")


def gather(
    house: House, records: Records, *, students: int, nodes: int | None, opens_at: datetime
) -> Course:
    """Enrol nodes (None: all of the course), import the students, sign everybody in."""
    text = rules(opens_at, utc_now())
    policy = load(text)
    students_named = [f"student{number:03}" for number in range(students)]
    assistants_named = [f"assistant{number}" for number in range(ASSISTANTS)]
    with house.http() as http:
        pairs = [(n, c) for c, hardware in policy.classes.items() for n in hardware.nodes]
        enrolled = [
            enrol(
                http,
                Line(house.host, house.port, {}),
                records,
                name=name,
                node_class=node_class,
                gpus=policy.classes[node_class].gpus,
            )
            for name, node_class in pairs[:nodes]
        ]
        _import(http, students_named, assistants_named)
        headers = {"Content-Type": "application/yaml"}
        http.post("/v1/policies", content=text.encode(), headers=headers).raise_for_status()
    database = Database(house.database_url)
    try:
        secrets = signed_in(database, [*students_named, *assistants_named])
    finally:
        database.close()
    return Course(
        policy=policy,
        students=[Person(name, secrets[name]) for name in students_named],
        assistants=[Person(name, secrets[name]) for name in assistants_named],
        nodes=enrolled,
    )


def _import(
    http: httpx2.Client, students_named: Sequence[str], assistants_named: Sequence[str]
) -> None:
    rows = ["name,email,lab,netid_parity,role"]
    for number, name in enumerate(students_named):
        parity = ("even", "odd")[number % 2]
        rows.append(f"{name},{name}@example.edu,{GROUP},{parity},user")
    rows += [f"{name},{name}@example.edu,,even,staff" for name in assistants_named]
    http.post("/v1/users/import", json={"csv": "\n".join(rows)}).raise_for_status()


def signed_in(database: Database, names: Sequence[str]) -> dict[str, str]:
    """Create a session for each user and return the secrets by name.

    All get the same password, which takes a sign-in as long to check as any other.
    """
    secrets, now, password = {}, utc_now(), hash_password(PASSWORD)
    with database.write() as session:
        for user in session.scalars(select(User).where(User.name.in_(names))):
            user.password_hash = password
            _, secrets[user.name] = issue_token(
                session,
                kind=TokenKind.SESSION,
                name="bench",
                now=now,
                user_id=user.id,
                lifetime=SESSION_IDLE,
                scopes=[Scope.ALL],
            )
    return secrets
