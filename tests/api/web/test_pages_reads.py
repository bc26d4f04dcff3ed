"""The reads of one page look its viewer up once, and only for that page; requests that come at the
same moment look up whom they are from together."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from sqlalchemy import event, update

from core.base.clock import utc_now
from core.tables.people import Token
from tests.api.conftest import World
from tests.api.shapes import job_spec


@contextmanager
def lookups(world: World) -> Iterator[list[str]]:
    """Collect the queries for the owner of a credential."""
    found: list[str] = []

    def note(_1: object, _2: object, statement: str, *_: object) -> None:
        if "tokens.sha256 IN " in statement:
            found.append(statement)

    event.listen(world.database.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(world.database.engine, "before_cursor_execute", note)


def test_a_page_looks_its_viewer_up_once(world: World) -> None:
    job_id = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    world.ann.get("/v1/me")  # notes when the token was last used
    with lookups(world) as found:
        page = world.ann.get(f"/jobs/{job_id}")
    assert page.status_code == 200
    assert len(found) == 1


def test_a_viewer_who_is_signed_out_sees_no_further_page(world: World) -> None:
    assert world.ann.get("/jobs").status_code == 200
    with world.database.write() as session:
        session.execute(update(Token).values(revoked_at=utc_now()))
    answer = world.ann.get("/jobs", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/jobs")


def test_pages_of_two_people_at_once_show_each_their_own(world: World) -> None:
    jobs = {
        name: client.post("/v1/jobs", json=job_spec(name=f"of-{name}")).json()["id"]
        for name, client in (("ann", world.ann), ("bob", world.bob))
    }

    async def look() -> list[httpx2.Response]:
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=world.app), base_url="http://127.0.0.1:8471"
        ) as browser:
            return await asyncio.gather(
                *(
                    browser.get(
                        f"/jobs/{jobs[name]}",
                        headers={"Authorization": f"Bearer {world.tokens[viewer]}"},
                    )
                    for viewer in ("ann", "bob") * 3
                    for name in ("ann", "bob")
                )
            )

    pages = asyncio.run(look())
    wanted = [(200, "of-ann"), (404, ""), (404, ""), (200, "of-bob")] * 3
    for page, (status, name) in zip(pages, wanted, strict=True):
        assert page.status_code == status
        assert name in page.text
        other = {"of-ann": "of-bob", "of-bob": "of-ann"}.get(name, "of-")
        assert other not in page.text


def test_requests_of_many_at_once_are_each_from_their_own_sender(world: World) -> None:
    senders = ("ann", "bob", "nobody", "ann", "nobody", "bob") * 8

    async def ask() -> list[httpx2.Response]:
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=world.app), base_url="http://127.0.0.1:8471"
        ) as client:
            tokens = [world.tokens.get(sender, "ty_unknown") for sender in senders]
            return await asyncio.gather(
                *(
                    client.get("/v1/me", headers={"Authorization": f"Bearer {token}"})
                    for token in tokens
                )
            )

    with lookups(world) as found:
        answers = asyncio.run(ask())
    for answer, sender in zip(answers, senders, strict=True):
        if sender == "nobody":
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        else:
            assert (answer.status_code, answer.json()["user"]["name"]) == (200, sender)
    assert len(found) < len(senders)
