"""A create that is sent again makes nothing new; a commit that fails is told."""

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import event, func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from api.housekeeping import forget_old
from core.base.clock import utc_now
from core.tables.files import Dataset
from core.tables.jobs import Event, Job
from core.tables.leases import Lease
from core.tables.people import Link, User
from tests.api.conftest import World, client
from tests.api.shapes import job_spec
from tests.api.times import next_hour

pytestmark = pytest.mark.race


def count(world: World, table: type[object]) -> int:
    with world.database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_two_hundred_parallel_submits_with_one_key_make_one_job(world: World) -> None:
    key = {"Idempotency-Key": uuid.uuid4().hex}
    local = threading.local()

    def submit(_: int) -> tuple[int, str]:
        if not hasattr(local, "client"):
            local.client = client(world.app, world.tokens["ann"])
        answer = local.client.post("/v1/jobs", json=job_spec(), headers=key)
        return answer.status_code, answer.json().get("id", answer.text)

    with ThreadPoolExecutor(16) as pool:
        answers = set(pool.map(submit, range(200)))
    assert len(answers) == 1
    ((status, job_id),) = answers
    assert (status, job_id[:4]) == (201, "job_")
    assert count(world, Job) == 1
    with world.database.read() as session:
        submitted = session.scalars(select(Event).where(Event.subject == job_id)).all()
    assert len(submitted) == 1


def test_a_key_with_another_body_is_refused(world: World) -> None:
    key = {"Idempotency-Key": "one"}
    first = world.ann.post("/v1/jobs", json=job_spec(), headers=key)
    other = world.ann.post("/v1/jobs", json=job_spec(name="other"), headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    assert first.json()["id"] in other.json()["detail"]
    assert world.bob.post("/v1/jobs", json=job_spec(), headers=key).status_code == 201
    bad = world.ann.post("/v1/jobs", json=job_spec(), headers={"Idempotency-Key": "x" * 201})
    assert (bad.status_code, "Idempotency-Key" in bad.json()["detail"]) == (422, True)


def test_every_create_takes_a_key(world: World) -> None:
    key = {"Idempotency-Key": "same"}
    job = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    creates = (
        (world.ann, f"/v1/jobs/{job}/clone", {"json": {"name": "again"}}),
        (world.bob, "/v1/datasets?name=mine", {"content": b"some text"}),
        (world.admin, "/v1/users", {"json": {"name": "cleo"}}),
        (world.staff, "/v1/leases", {"json": {"node": "box", "start": next_hour(), "hours": 1}}),
    )
    for caller, path, body in creates:
        answers = [caller.post(path, headers=key, **body) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 201], answers[0].text
        assert answers[0].json()["id"] == answers[1].json()["id"], path
    assert (count(world, Job), count(world, Dataset), count(world, Lease)) == (2, 1, 1)

    answers = [
        world.ann.post("/v1/tokens", json={"name": "t"}, headers={"Idempotency-Key": "token"})
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [201, 409]
    assert answers[1].json()["code"] == "shown_once"


@contextmanager
def commits_that_fail(world: World, *, after: bool) -> Iterator[None]:
    """Lose the connection at the commit: before it reaches the database, or just after."""

    def fail(_: Session) -> None:
        raise ConnectionResetError("the database went away")

    when = "after_commit" if after else "before_commit"
    event.listen(Session, when, fail)
    try:
        yield
    finally:
        event.remove(Session, when, fail)


@pytest.mark.parametrize("after", [False, True], ids=["before the commit", "after the commit"])
def test_a_commit_that_fails_is_told_and_can_be_tried_again(world: World, after: bool) -> None:
    key = {"Idempotency-Key": "retry"}
    assert world.ann.get("/v1/me").status_code == 200  # so that no `last_used_at` is due below
    with commits_that_fail(world, after=after):
        answer = world.ann.post("/v1/jobs", json=job_spec(), headers=key)
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert count(world, Job) == (1 if after else 0)

    again = world.ann.post("/v1/jobs", json=job_spec(), headers=key)
    assert again.status_code == 201
    assert count(world, Job) == 1
    with world.database.read() as session:
        assert session.scalars(select(Job.id)).one() == again.json()["id"]
        assert session.scalar(select(func.count()).select_from(User)) == 4


def test_a_database_that_is_away_is_told_with_a_time_to_wait(world: World) -> None:
    engines = (world.database.engine, world.app.state.looks.database.engine)

    def refuse(*_: object) -> None:
        raise OperationalError("SELECT 1", {}, ConnectionRefusedError("no database"))

    for engine in engines:
        engine.dispose()
        event.listen(engine, "connect", refuse)
    try:
        answer = world.ann.get("/v1/me")
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert answer.headers["retry-after"] == "5"
        assert world.nobody.get("/readyz").status_code == 503
        assert world.nobody.get("/healthz").status_code == 200
    finally:
        for engine in engines:
            event.remove(engine, "connect", refuse)
    assert world.ann.get("/v1/me").status_code == 200


def test_keys_and_links_are_forgotten_when_their_time_is_over(world: World) -> None:
    key = {"Idempotency-Key": "old"}
    first = world.ann.post("/v1/jobs", json=job_spec(), headers=key).json()["id"]
    forget_old(world.database, utc_now() + timedelta(days=6))
    assert world.ann.post("/v1/jobs", json=job_spec(), headers=key).json()["id"] == first
    forget_old(world.database, utc_now() + timedelta(days=8))
    assert world.ann.post("/v1/jobs", json=job_spec(), headers=key).json()["id"] != first
    with world.database.read() as session:
        assert session.scalars(select(Link)).all() == []
