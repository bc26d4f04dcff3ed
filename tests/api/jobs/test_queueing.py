"""Submissions that arrive together: one transaction, and each its own answer."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from api.jobs import queueing
from api.jobs.queueing import NewJob, plan_new, queue_together
from api.jobs.schemas import JobView
from api.jobs.submission import read_spec
from api.web.bells import Bells
from api.web.idempotency import keyed
from api.web.identity import Person
from core.base.clock import utc_now
from core.base.errors import ServiceError
from core.base.strict_text import SpecText
from core.process import read_only
from core.process.settings import ApiSettings
from core.tables.jobs import Event, Job
from core.tables.kinds import Role, Scope
from core.tables.people import User
from core.tables.processes import IdempotentAnswer
from tests.api.conftest import World, client, running_world
from tests.api.shapes import job_spec


def person(world: World, name: str) -> Person:
    with world.database.read() as session:
        user = session.scalars(select(User).where(User.name == name)).one()
    return Person(
        id=user.id,
        name=user.name,
        role=Role.USER,
        zone="UTC",
        token_id="token_1",
        scopes=frozenset([Scope.ALL]),
        made_with=None,
        token_ends_at=None,
    )


def new(world: World, owner: str, name: str, key: str | None = None) -> NewJob:
    spec = read_spec(SpecText(value=job_spec(name=name), lines={}))
    who = person(world, owner)
    with world.database.read() as session:
        sent = keyed(who, key, "/v1/jobs", name.encode())
        return plan_new(session, world.process, who, spec, sent)


def limited(settings: ApiSettings, jobs: int) -> AbstractContextManager[World]:
    """A world in which nobody may have more than so many waiting and running jobs."""
    return running_world(settings.model_copy(update={"max_queued_jobs": jobs}))


def told(answers: list[JobView | ServiceError]) -> list[str]:
    return [one.code if isinstance(one, ServiceError) else one.name for one in answers]


def count(world: World, table: type[object]) -> int:
    with world.database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def count_events(world: World) -> int:
    """Number of events of jobs."""
    with world.database.read() as session:
        return session.scalar(select(func.count()).where(Event.subject.startswith("job_"))) or 0


def test_each_of_a_group_has_its_own_answer(settings: ApiSettings) -> None:
    with limited(settings, 3) as world:
        group = [
            new(world, "ann", "a", key="one"),
            new(world, "bob", "b", key="one"),  # keys are each person's own
            new(world, "ann", "a", key="one"),  # the same request, sent twice at once
            new(world, "ann", "other", key="one"),
            new(world, "ann", "a2"),
            new(world, "ann", "a3"),
            new(world, "ann", "a4"),  # the fourth of three
            new(world, "bob", "b2"),
        ]
        answers = list(world.process.transact(queue_together, world.process, group))
        expected = ["a", "b", "a", "idempotency_mismatch", "a2", "a3", "queue_full", "b2"]
        assert told(answers) == expected
        assert answers[0] == answers[2]
        assert (count(world, Job), count_events(world), count(world, IdempotentAnswer)) == (5, 5, 2)
        with world.database.read() as session:
            rows = session.execute(select(Job.name, User.name).join(User)).all()
            actors = session.execute(
                select(Event.actor, Job.user_id).join(Job, Job.id == Event.subject)
            )
        assert sorted(map(tuple, rows)) == [
            *[(name, "ann") for name in ("a", "a2", "a3")],
            *[(name, "bob") for name in ("b", "b2")],
        ]
        assert all(actor == owner for actor, owner in actors)

        [again, full] = world.process.transact(
            queue_together,
            world.process,
            [new(world, "ann", "a", key="one"), new(world, "ann", "a5")],
        )
        assert isinstance(again, JobView)
        assert (again.id, told([again, full])) == (answers[0].id, ["a", "queue_full"])  # type: ignore[union-attr]
        assert count(world, Job) == 5


def test_a_group_of_refused_ones_rings_nobody_and_writes_nothing(settings: ApiSettings) -> None:
    with limited(settings, 1) as world:
        world.process.transact(queue_together, world.process, [new(world, "ann", "first")])
        bells = Bells()
        with world.database.write() as session:
            answers = queue_together(session, bells, world.process, [new(world, "ann", "second")])
        assert (told(list(answers)), bool(bells), count(world, Job)) == (["queue_full"], False, 1)


@pytest.mark.race
def test_many_at_once_get_what_the_limit_allows_and_each_job_is_there_once(
    settings: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with limited(settings, 20) as world:
        sizes: list[int] = []

        def noted(*args: Any) -> Any:
            sizes.append(len(args[-1]))
            return queue_together(*args)

        monkeypatch.setattr(queueing, "queue_together", noted)
        local = threading.local()

        def submit(number: int) -> tuple[str, int, str]:
            who = "ann" if number % 2 else "bob"
            if not hasattr(local, "clients"):
                local.clients = {
                    name: client(world.app, world.tokens[name]) for name in ("ann", "bob")
                }
            answer = local.clients[who].post("/v1/jobs", json=job_spec(name=f"j{number}"))
            return who, answer.status_code, answer.json().get("code", "")

        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(submit, range(60)))
        for who in ("ann", "bob"):
            of = [answer[1:] for answer in answers if answer[0] == who]
            assert (of.count((201, "")), of.count((429, "queue_full"))) == (20, 10)
        assert (count(world, Job), count_events(world)) == (40, 40)
        assert sum(sizes) == 60


def test_a_group_that_fails_is_written_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = queueing.insert_jobs

    def failing(session: Any, jobs: Any) -> None:
        real(session, jobs)
        if any(job.view.name == "bad" for job in jobs):
            raise RuntimeError("as a broken constraint would")

    monkeypatch.setattr(queueing, "insert_jobs", failing)
    group = [new(world, "ann", "good"), new(world, "ann", "bad"), new(world, "bob", "fine")]

    async def story() -> list[JobView | BaseException]:
        queued = (queueing.queue(world.process, job) for job in group)
        return await asyncio.gather(*queued, return_exceptions=True)

    outcomes = asyncio.run(story())
    names = [one.name if isinstance(one, JobView) else type(one).__name__ for one in outcomes]
    assert names == ["good", "RuntimeError", "fine"]
    assert (count(world, Job), count_events(world)) == (2, 2)


def test_while_nothing_may_be_changed_everybody_is_told(world: World) -> None:
    with world.database.write() as session:
        read_only.begin(session, "A backup.", now=utc_now(), lasts=timedelta(minutes=5))
    answer = world.ann.post("/v1/jobs", json=job_spec())
    assert (answer.status_code, answer.json()["code"]) == (503, "read_only")


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ({}, job_spec(), 201, None),
        ({"Authorization": "Bearer ty_wrong"}, job_spec(), 401, "unauthenticated"),
        ({"Authorization": "Basic abc"}, job_spec(), 401, "unauthenticated"),
        ({"Idempotency-Key": "a b"}, job_spec(), 422, "invalid"),
        ({"Idempotency-Key": "x" * 201}, job_spec(), 422, "invalid"),
        ({}, {}, 422, "invalid"),
        ({}, {**job_spec(), "color": "red"}, 422, "invalid"),
        ({}, {**job_spec(), "model": {"name": "gpt", "layers": 0}}, 422, "invalid"),
        ({"Content-Type": "application/yaml"}, "name: [", 422, None),
        ({"Content-Type": "text/plain"}, "x", 422, None),
        ({"Content-Type": "application/json"}, "{", 422, None),
    ],
)
def test_the_short_way_and_the_thorough_one_answer_the_same(
    world: World, headers: dict[str, str], body: Any, status: int, code: str | None
) -> None:
    sent = {"content": body} if isinstance(body, str) else {"json": body}
    answers = [
        world.ann.post(path, headers=headers, **sent)
        for path in ("/v1/jobs", "/v1/jobs?changes={}")
    ]
    first, second = (answer.json() for answer in answers)
    assert answers[0].status_code == answers[1].status_code
    assert (status, code or first.get("code")) == (answers[0].status_code, first.get("code"))
    assert set(first) == set(second)
    for name in ("title", "status", "code", "detail", "errors", "name", "spec", "plan", "state"):
        assert first.get(name) == second.get(name), name
    known = {name for name in answers[0].headers if name.startswith(("rate", "content-type"))}
    assert known == {
        name for name in answers[1].headers if name.startswith(("rate", "content-type"))
    }


def test_the_short_way_opens_to_tokens_for_jobs_alone(world: World) -> None:
    made = world.ann.post("/v1/tokens", json={"name": "t", "scopes": ["read"]}).json()["secret"]
    answer = client(world.app, made).post("/v1/jobs", json=job_spec())
    assert (answer.status_code, answer.json()["code"]) == (403, "missing_scope")
    assert world.node.post("/v1/jobs", json=job_spec()).status_code == 401
    assert world.nobody.post("/v1/jobs", json=job_spec()).status_code == 401
