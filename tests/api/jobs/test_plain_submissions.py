"""Submissions that arrive together: planned together, and each its own answer."""

import json
from typing import Any

import pytest
from fastapi import Request
from sqlalchemy import event

from api.app import api_routes
from api.jobs.plain_submissions import SentJob, plan_together
from api.jobs.routes_submission import PATH
from core.base.errors import ServiceError
from core.process.settings import ApiSettings
from tests.api.conftest import World, running_world
from tests.api.shapes import job_spec

ROUTE = next(one for one in api_routes() if one.path == PATH and "POST" in (one.methods or ()))


def sent(world: World, who: str, body: Any) -> SentJob:
    """A submission as the route gets it."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": PATH,
        "route": ROUTE,
        "headers": [
            (b"authorization", f"Bearer {world.tokens.get(who, who)}".encode()),
            (b"content-type", b"application/json"),
        ],
    }
    return SentJob(Request(scope), json.dumps(body).encode())


def test_each_of_a_group_has_its_own_answer(settings: ApiSettings) -> None:
    few = settings.model_copy(update={"submissions_per_minute": 2})
    nowhere = {**job_spec(), "resources": {**job_spec()["resources"], "node_class": "none"}}
    with running_world(few) as world:
        group = [
            sent(world, "ann", job_spec(name="a1")),
            sent(world, "stranger", job_spec()),
            sent(world, "bob", job_spec(name="b1")),
            sent(world, "ann", {"name": "a"}),  # refused before it counts
            sent(world, "ann", nowhere),  # counts
            sent(world, "ann", job_spec(name="a3")),  # the third of two
            sent(world, "bob", job_spec(name="b2")),
        ]
        planned = plan_together(world.process, group)
    expected = [
        *(("a1", 1), "unauthenticated", ("b1", 1), "invalid"),
        *("unknown_node_class", "rate_limited", ("b2", 0)),
    ]
    assert expected == [
        one.code if isinstance(one, ServiceError) else (one[0].planned.spec.name, one[1].remaining)
        for one in planned
    ]
    owners = [one[0].owner.name for one in planned if not isinstance(one, ServiceError)]
    assert owners == ["ann", "bob", "bob"]


@pytest.mark.parametrize("size", [1, 12])
def test_a_group_asks_the_database_as_often_as_one(world: World, size: int) -> None:
    people = ("ann", "bob")
    group = [sent(world, people[one % 2], job_spec(name=f"j{one}")) for one in range(size)]
    plan_together(world.process, group)  # uses each token for the first time
    asked: list[str] = []

    def note(*args: Any) -> None:
        asked.append(args[2])

    event.listen(world.database.engine, "before_cursor_execute", note)
    plan_together(world.process, group)
    event.remove(world.database.engine, "before_cursor_execute", note)
    tables = [
        table for text in asked for table in ("tokens", "node_classes") if f"FROM {table}" in text
    ]
    assert tables == ["tokens", "node_classes"]
