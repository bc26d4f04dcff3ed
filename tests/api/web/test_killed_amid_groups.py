"""kill -9 of an API amid its groups: what was answered is there, and everything is there once."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count

import httpx2
from sqlalchemy import select

from api.records import metric_store
from core.process.settings import ApiSettings
from core.tables.jobs import Attempt, Event, Job
from core.tables.processes import IdempotentAnswer
from core.tables.telemetry import StreamCursor
from tests.api.conftest import NOWHERE, World
from tests.api.shapes import job_spec, place
from tests.forked import Forked, origin
from tests.one_database import quick_on_postgresql
from tests.running import own_port, wait_for

Ask = Callable[[httpx2.Client, int, int], None]
CLIENTS = 4  # of each kind
ANSWERS = 200  # then it is killed


@quick_on_postgresql
def test_what_was_answered_before_a_kill_is_there_once(world: World, settings: ApiSettings) -> None:
    job_id = str(world.ann.post("/v1/jobs", json=job_spec(name="trains")).json()["id"])
    place(world.database, job_id)
    next_lines = dict.fromkeys(range(CLIENTS), 0)
    """By rank, as the API has told."""
    submitted: dict[str, str] = {}
    """Job by key."""

    def send(http: httpx2.Client, rank: int, turn: int) -> None:
        first = 3 * turn
        lines = [{"step": n, "loss": float(n)} for n in range(first, first + 3)]
        body = {"job_id": job_id, "epoch": 1, "rank": rank, "first_line": first, "lines": lines}
        answer = http.post("/v1/node/metrics", json=body)
        assert answer.json() == {"next_line": first + 3}
        next_lines[rank] = first + 3

    def submit(http: httpx2.Client, client: int, turn: int) -> None:
        key = f"{client}-{turn}"
        answer = http.post("/v1/jobs", json=job_spec(name=key), headers={"Idempotency-Key": key})
        submitted[key] = answer.json()["id"]

    with serving(settings) as (api, url):
        kill_amid(api, url, {world.tokens["box"]: send, world.tokens["ann"]: submit})

    with world.database.read() as session:
        attempt_id = session.scalars(select(Attempt.id)).one()
        for rank, told in next_lines.items():
            stream = StreamCursor.stream == f"metrics/{rank}"
            position = session.scalars(select(StreamCursor.position).where(stream)).one()
            points = metric_store.read(session, attempt_id, rank=rank)["loss", rank]
            assert position in (told, told + 3)  # one batch was under way
            assert points.lines.tolist() == list(range(position))

        jobs = {name: one for one, name in session.execute(select(Job.id, Job.name))}
        of_jobs = Event.subject.startswith("job_"), Event.subject != job_id
        events = session.scalars(select(Event.subject).where(*of_jobs)).all()
        assert sorted([job_id, *events]) == sorted(jobs.values())
        rows = session.execute(select(IdempotentAnswer.key, IdempotentAnswer.subject))
        kept = {key: subject for key, subject in rows}
        assert kept == {key: one for key, one in jobs.items() if key != "trains"}
    assert {key: kept.get(key) for key in submitted} == submitted
    assert len(kept) <= len(submitted) + CLIENTS
    key = max(submitted)
    headers = {"Idempotency-Key": key}
    again = world.ann.post("/v1/jobs", json=job_spec(name=key), headers=headers)
    assert again.json()["id"] == submitted[key]


def kill_amid(api: Forked, url: str, asked: dict[str, Ask]) -> None:
    """Let CLIENTS with each of these tokens ask one thing after the other; kill the API after
    ANSWERS answers."""
    answered = threading.Semaphore(0)

    def client(token: str, number: int) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        with httpx2.Client(base_url=url, headers=headers, timeout=60) as http:
            for turn in count():
                try:
                    asked[token](http, number, turn)
                except httpx2.TransportError:
                    return
                answered.release()

    with ThreadPoolExecutor(2 * CLIENTS) as pool:
        clients = [pool.submit(client, token, n) for token in asked for n in range(CLIENTS)]
        for _ in range(ANSWERS):
            assert answered.acquire(timeout=60)
        api.kill()
        for one in clients:
            one.result()


@contextmanager
def serving(settings: ApiSettings) -> Iterator[tuple[Forked, str]]:
    """Start an API process on the database of these settings; yield it and its address."""
    port = own_port()
    environment = {
        **os.environ,
        "TRAINYARD_DATABASE_URL": settings.database_url,
        "TRAINYARD_REDIS_URL": NOWHERE,
        "TRAINYARD_STORE": str(settings.store),
        "TRAINYARD_PORT": str(port),
        "TRAINYARD_SUBMISSIONS_PER_MINUTE": "1000000",
        "TRAINYARD_MAX_QUEUED_JOBS": "100000",
    }
    with open(os.devnull, "wb") as log:
        api = origin().start("api.main", environment=environment, log=log)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert api.poll() is None
        with suppress(httpx2.TransportError):
            return httpx2.get(f"{url}/healthz").is_success
        return False

    try:
        wait_for(answers, what="the API")
        yield api, url
    finally:
        api.kill()
        api.wait(timeout=20)
