"""Agendas in the scheduler: one after the other, beside each other, and called off."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from core.agendas.agenda import (
    place_of,
)
from core.database.database import Database
from core.notices.notices import NoticeKind
from core.states import JobState, Outcome
from core.tables.agendas import Agenda, AgendaJob
from core.tables.jobs import Job
from core.tables.kinds import OnFailure
from core.tables.notices import Notice
from scheduler.cycle import read_world
from scheduler.queue.ordering import next_first
from tests.scheduler.world import World, at


@pytest.fixture
def world(migrated_database: Database) -> World:
    return World(migrated_database, now=at(12))


def agenda(world: World, lease: str, walls: list[str], **changes: Any) -> list[str]:
    """Jobs of an agenda; `ranks` is of each of them. Or it is of those in `jobs`."""
    ranks = changes.pop("ranks", 2)
    jobs = changes.pop("jobs", None) or [
        world.job(wall=wall, lease=lease, ranks=ranks, name=f"part-{number}")
        for number, wall in enumerate(walls, start=1)
    ]
    fields: dict[str, Any] = {"side_by_side": False, "on_failure": OnFailure.GO_ON, **changes}
    with world.database.write() as session:
        session.add(
            Agenda(
                id="agenda_1",
                user_id="user_ada",
                name="lab",
                lease_id=lease,
                created_at=world.now,
                **fields,
            )
        )
        session.flush()
        session.add_all(
            AgendaJob(job_id=job, agenda_id="agenda_1", position=position)
            for position, job in enumerate(jobs)
        )
    return jobs


def begun(world: World, hours: int = 3) -> str:
    """A lease that has just begun."""
    node = world.node()
    lease = world.book(node, at(12), hours)
    world.cycle()
    return lease


def finish(world: World, job: str, outcome: Outcome = Outcome.SUCCEEDED) -> None:
    """It ends ten minutes later, on a node that is heard all the time."""
    world.now = world.now.replace(minute=world.now.minute + 10)
    world.exits(job, outcome)


def states(world: World, jobs: list[str]) -> list[JobState]:
    return [world.get_job(job).state for job in jobs]


def test_a_job_starts_when_the_one_before_it_has_ended(world: World) -> None:
    lease = begun(world)
    one, two, three = agenda(world, lease, ["20min", "30min", "20min"], ranks=1)
    assert world.cycle() == [one]  # a slot is free, and yet
    waiting = world.get_job(two)
    assert waiting.reason_code == "agenda_order"
    world.runs(one)
    world.cycle()
    waiting, last = world.get_job(two), world.get_job(three)
    assert waiting.reason == (
        "Waits for its turn in lab, after part-1, until 12:21 UTC at the latest."
    )
    assert (waiting.predicted_start, last.predicted_start) == (at(12, 21), at(12, 52))
    assert "after part-1 and part-2, until 12:52 UTC" in last.reason
    finish(world, one)
    assert world.cycle() == [two]
    assert world.lease_of(two).id == lease
    finish(world, two, Outcome.USER_ERROR)
    assert world.cycle() == [three]  # go_on


def test_before_the_lease_the_order_is_told_with_its_times(world: World) -> None:
    lease = world.book(world.node(), at(14), 3)
    one, two = agenda(world, lease, ["20min", "30min"])
    assert world.cycle() == []
    assert world.get_job(one).reason_code == "lease_not_begun"
    assert world.get_job(two).predicted_start == at(14, 25)  # 14:21, told to five minutes


def test_a_paused_job_lets_the_others_pass_and_comes_back_behind_the_one_that_runs(
    world: World,
) -> None:
    lease = begun(world)
    one, two = agenda(world, lease, ["20min", "20min"])
    with world.database.write() as session:
        session.get_one(Job, one).state = JobState.PAUSED
    assert world.cycle() == [two]
    with world.database.write() as session:
        session.get_one(Job, one).state = JobState.QUEUED
    assert world.cycle() == []
    assert world.get_job(one).reason_code == "agenda_order"
    world.runs(two)
    finish(world, two)
    assert world.cycle() == [one]


def test_side_by_side_they_start_in_their_order_where_slots_are_free(world: World) -> None:
    lease = begun(world)
    one, two, three = agenda(world, lease, ["20min"] * 3, ranks=1, side_by_side=True)
    assert world.cycle() == [one]
    assert world.cycle() == [two]
    assert world.cycle() == []
    assert world.get_job(three).reason_code == "lease_busy"
    world.runs(one)
    finish(world, one)
    world.report()
    assert world.cycle() == [three]


def test_a_failure_calls_off_what_has_not_begun_where_that_was_asked_for(world: World) -> None:
    lease = begun(world)
    jobs = agenda(world, lease, ["20min"] * 3, on_failure=OnFailure.STOP)
    assert world.cycle() == jobs[:1]
    world.runs(jobs[0])
    finish(world, jobs[0], Outcome.OUT_OF_MEMORY)
    assert world.cycle() == []
    assert states(world, jobs) == [JobState.FAILED, JobState.CANCELLED, JobState.CANCELLED]
    off = world.get_job(jobs[2])
    assert off.reason_code == "agenda_stopped"
    assert off.finished_at == world.now
    assert off.reason.startswith("Not run: part-1 of lab has failed")


def test_a_used_up_wall_time_is_no_failure(world: World) -> None:
    lease = begun(world)
    one, two = agenda(world, lease, ["20min"] * 2, on_failure=OnFailure.STOP)
    assert world.cycle() == [one]
    world.runs(one)
    finish(world, one, Outcome.TIME_LIMIT)
    assert world.cycle() == [two]


def test_after_the_lease_the_order_still_holds(world: World) -> None:
    lease = begun(world, hours=1)
    one, two = agenda(world, lease, ["2h", "20min"])
    assert world.cycle() == [one]
    world.runs(one)
    world.now = at(12, 55)
    world.report()
    world.cycle()  # asks it to stop
    world.saves(one)
    world.exits(one, Outcome.LEASE_ENDED)
    assert world.cycle() == [one]
    assert world.get_job(two).reason_code == "agenda_order"


def test_of_ones_jobs_the_order_is_the_one_that_the_forecast_counts_on(world: World) -> None:
    walls = ["20min", "1h", "90min", "3h"]
    jobs = [
        world.job(wall=wall, queued_at=at(11, minute)) for wall in walls for minute in (0, 20, 40)
    ]
    order = next_first(read_world(world.scheduler, world.now).waiting, world.now, {})
    places = {job: world.get_job(job) for job in jobs}
    by_place = sorted(
        jobs, key=lambda job: (place_of(places[job].queued_at, places[job].wall_time_s), job)
    )
    assert [job.id for job in order] == by_place


def test_on_several_nodes_a_wide_job_waits_for_all_of_them_and_the_next_for_it(
    world: World,
) -> None:
    nodes = [world.node("north-01"), world.node("north-02")]
    held = [world.book(node, at(12), 3) for node in nodes]
    world.cycle()
    one, wide, last = (
        world.job(lease=held[0]),
        world.job(leases=held, nodes=2, lease_id=held[0]),
        world.job(lease=held[1]),
    )
    made = agenda(world, held[0], [], jobs=[one, wide, last])
    assert world.cycle() == [one]
    world.runs(one)
    world.cycle()
    assert world.get_job(wide).predicted_start == at(12, 21)
    assert world.get_job(last).predicted_start == at(12, 42)
    finish(world, one)
    world.report()
    assert world.cycle() == [wide]
    assert sorted(part.lease_id for part in world.parts(wide)) == sorted(held)
    world.runs(wide)
    finish(world, wide)
    world.report()
    assert world.cycle() == [last]
    assert world.lease_of(last).id == held[1]
    assert states(world, made)[:2] == [JobState.SUCCEEDED] * 2


# --------------------------------------------------------------------------- what its owner is told


def told(world: World) -> list[tuple[str, str]]:
    """Kind and message of every notice to the agenda's owner, in order."""
    with world.database.read() as session:
        rows = session.scalars(select(Notice).order_by(Notice.id)).all()
    assert {row.subject for row in rows} <= {"agenda_1"}
    assert {row.user_id for row in rows} <= {"user_ada"}
    return [(row.kind, str(row.facts["message"])) for row in rows]


def look(world: World, moment: datetime) -> None:
    """A cycle at this moment, in a world where every node is heard."""
    world.now = moment
    world.report()
    world.cycle()


def test_who_becomes_late_is_told_once_by_whichever_scheduler(world: World) -> None:
    lease = begun(world, hours=2)
    agenda(world, lease, ["50min", "50min"])  # 101 of 115 minutes
    with world.database.write() as session:
        for job in session.scalars(select(Job)):
            job.not_before = at(14)  # it can't start
    look(world, at(12, 10))
    assert told(world) == []
    look(world, at(12, 20))
    look(world, at(12, 30))
    world.scheduler = world.new_scheduler("second")
    look(world, at(12, 40))
    ((kind, message),) = told(world)
    assert kind == NoticeKind.AGENDA_LATE
    assert (
        "lab (agenda_1) fitted into its lease and no longer does. It is too long by 6min" in message
    )
    assert f"trainyard leases extend {lease} 1" in message
    assert "cancel jobs that you can do without among part-1 and part-2" in message


def test_who_did_not_fit_from_the_beginning_is_not_told_that_it_is_late(world: World) -> None:
    lease = begun(world, hours=2)
    agenda(world, lease, ["90min", "50min"])
    look(world, at(12, 30))
    assert told(world) == []


def test_nobody_is_told_before_the_lease_or_while_all_is_in_time(world: World) -> None:
    lease = world.book(world.node(), at(14), 2)
    one, _ = agenda(world, lease, ["50min", "50min"])
    look(world, at(13, 30))
    look(world, at(14))
    world.runs(one)
    look(world, at(14, 13))
    assert told(world) == []


def test_of_each_job_that_its_wall_time_cuts_the_owner_is_told_once(world: World) -> None:
    lease = begun(world)
    one, two = agenda(world, lease, ["20min", "20min"])
    for job in (one, two):
        world.cycle()
        world.runs(job)
        finish(world, job, Outcome.TIME_LIMIT)
        look(world, world.now + timedelta(minutes=1))
        look(world, world.now + timedelta(minutes=1))
    first, second = told(world)
    assert first[0] == second[0] == NoticeKind.AGENDA_CUT
    assert f"part-1 ({one}) of lab (agenda_1) was cut short: its wall time was used up." in first[1]
    assert f"({two})" in second[1]


def test_of_what_the_end_of_the_lease_leaves_over_the_owner_is_told_once(world: World) -> None:
    lease = begun(world, hours=1)
    one, _ = agenda(world, lease, ["80min", "20min"])  # submitted anyway
    world.cycle()
    world.runs(one)
    look(world, at(12, 55))
    world.saves(one)
    world.exits(one, Outcome.LEASE_ENDED)
    assert told(world) == []
    look(world, at(12, 57))
    look(world, at(12, 58))
    world.scheduler = world.new_scheduler("second")
    look(world, at(13, 30))
    ((kind, message),) = told(world)
    assert kind == NoticeKind.AGENDA_CUT
    assert "its lease ended at 12:55 UTC" in message
    assert (
        "and part-1 had not ended, part-2 had not begun. These jobs are saved and continue"
        in message
    )


def test_jobs_of_no_agenda_are_not_touched(world: World) -> None:
    lease = begun(world)
    one, two = agenda(world, lease, ["20min"] * 2, ranks=1)
    other = world.job(lease=lease, ranks=1)
    assert sorted(world.cycle()) == sorted([one, other])
    assert states(world, [two]) == [JobState.QUEUED]
