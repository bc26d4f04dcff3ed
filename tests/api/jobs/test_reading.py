"""Readings of other people's jobs that arrive together: one write, and each its own answer."""

import threading
from dataclasses import replace

from sqlalchemy import event, select

from api.jobs.reading import Reading, allow_together
from core.base.errors import ServiceError
from core.tables.admin import AuditEntry
from core.tables.kinds import Role
from tests.api.conftest import World
from tests.api.jobs.test_queueing import person
from tests.api.shapes import job_spec


def test_what_is_read_together_is_recorded_together_once_each(world: World) -> None:
    jobs = [world.ann.post("/v1/jobs", json=job_spec()).json()["id"] for _ in range(2)]
    ann, bob = person(world, "ann"), person(world, "bob")
    stefan = replace(person(world, "stefan"), role=Role.STAFF)
    asked = [
        *((ann, jobs[0]), (stefan, jobs[0]), (bob, jobs[0]), (stefan, jobs[1])),
        *((stefan, jobs[0]), (stefan, "job_none")),
    ]
    group = [Reading(who, job) for who, job in asked]
    here, commits = threading.get_ident(), []

    def note(connection: object) -> None:
        if threading.get_ident() == here:  # not one of the process's chores
            commits.append(connection)

    event.listen(world.database.engine, "commit", note)
    answers = allow_together(world.process, group)
    again = allow_together(world.process, group)
    event.remove(world.database.engine, "commit", note)

    for told in (answers, again):
        codes = [one.code if isinstance(one, ServiceError) else one.id for one in told]
        assert codes == [jobs[0], jobs[0], "not_found", jobs[1], jobs[0], "not_found"]
    with world.database.read() as session:
        rows = session.scalars(select(AuditEntry).where(AuditEntry.action == "job.read_logs"))
        recorded = sorted((row.actor, row.subject, row.details["owner"]) for row in rows)
    assert recorded == sorted((stefan.id, job, ann.id) for job in jobs)
    assert len(commits) == 1
