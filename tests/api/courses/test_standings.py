"""A student's way through an exercise, and what the instructor sees of the class."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from core.base.clock import utc_now
from core.states import JobState
from core.tables.courses import Exercise
from core.tables.files import Report
from core.tables.jobs import Job
from tests.api.agendas.test_agendas import lease
from tests.api.conftest import World
from tests.api.courses.bundle import sdk, write_bundle
from trainyard import Conflict, Invalid, NotFound
from trainyard.views import Standing

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def course(world: World, tmp_path: Path) -> None:
    """The course of the bundle, which began three days ago, with bob in it."""
    with sdk(world, "ada") as ada:
        assert ada.courses.apply(
            write_bundle(tmp_path), (utc_now() - timedelta(days=3)).date()
        ).applied
    added = world.admin.post("/v1/labs/ml-students/members", json={"user": "bob"})
    assert added.is_success


def end(world: World, states: dict[str, JobState]) -> None:
    """Do what nodes do: end these jobs."""
    with world.database.write() as session:
        for job_id, state in states.items():
            session.execute(
                update(Job).where(Job.id == job_id).values(state=state, reason=f"It {state}.")
            )


def line(world: World, user: str, exercise: str = "two") -> Standing:
    with sdk(world, "stefan") as stefan:
        return next(one for one in stefan.courses.roster("ml-lab", exercise) if one.user == user)


def result(world: World, user: str, exercise: str = "two") -> dict[str, Any]:
    with sdk(world, "stefan") as stefan:
        found = stefan.courses.results("ml-lab", exercise)
        return next(dict(one.results) for one in found if one.user == user)


@pytest.mark.usefixtures("course")
def test_a_student_goes_from_booking_to_the_grade(world: World) -> None:
    with sdk(world, "bob") as bob:
        seen = bob.courses.exercise("ml-lab", "two")
        assert seen.notes.startswith("# Two runs\n\nDue 20")
        assert (seen.standing.next, seen.standing.expected, seen.standing.jobs) == ("book", 2, ())
        with pytest.raises(Conflict, match="You have started nothing"):
            bob.courses.hand_in("ml-lab", "two")

        booked = lease(world, user="bob")
        assert bob.courses.exercise("ml-lab", "two").standing.next == "start"
        assert line(world, "bob").lease == booked
        made = bob.templates.start("ada/two", {"common.training.learning_rate": 0.01}, lease=booked)
        standing = bob.courses.exercise("ml-lab", "two").standing
        assert (standing.next, standing.agenda, len(standing.jobs)) == ("wait", made.agenda, 2)
        with pytest.raises(Conflict, match="2 of 2 jobs have not ended: first, second"):
            bob.courses.hand_in("ml-lab", "two")

        first, second = (job.job for job in standing.jobs)
        end(world, {first: JobState.SUCCEEDED, second: JobState.FAILED})
        standing = bob.courses.exercise("ml-lab", "two").standing
        assert (standing.next, standing.succeeded, standing.failed) == ("start", 1, 1)
        done = bob.courses.hand_in("ml-lab", "two").standing
        assert (done.next, done.late) == ("done", False)
        assert done.report is not None
        with pytest.raises(Conflict, match="was handed in"):
            bob.reports.delete(done.report)

    found = result(world, "bob")
    assert found["score"] == 1
    assert [(one["name"], one["score"], one["status"]) for one in found["tests"]] == [
        ("first", 1, "passed"),
        ("second", 0, "failed"),
    ]
    assert found["tests"][1]["output"] == "It failed."
    assert found["extra_data"] == {"report": done.report, "late": False}
    end(world, {second: JobState.SUCCEEDED})
    assert result(world, "bob")["score"] == 1  # the report is what it was
    with sdk(world, "bob") as bob:
        again = bob.courses.hand_in("ml-lab", "two").standing
        assert again.report != done.report
    assert result(world, "bob")["score"] == 2


@pytest.mark.usefixtures("course")
def test_reports_of_other_work_or_changed_ones_do_not_count(world: World) -> None:
    with sdk(world, "bob") as bob, sdk(world, "ann") as ann:
        made = bob.templates.start("ada/program")
        assert made.job is not None
        end(world, {made.job: JobState.SUCCEEDED})
        # A job of the same name that is not from the template.
        spec = {**bob.jobs.get(made.job).spec}
        other = bob.jobs.create(spec)
        end(world, {other.id: JobState.SUCCEEDED})
        foreign = bob.reports.write([other.id])
        bob.courses.hand_in("ml-lab", "own", foreign.sha256)
        found = result(world, "bob", "own")
        assert (found["score"], found["tests"][0]["output"]) == (
            0,
            "The report's job was not started from this exercise's template.",
        )
        right = bob.courses.hand_in("ml-lab", "own").standing.report
        assert result(world, "bob", "own")["score"] == 1
        with world.database.write() as session:
            text = session.get_one(Report, right).content
            session.get_one(Report, right).content = text.replace('"trainyard', '"Trainyard')
        changed = result(world, "bob", "own")
        assert (changed["score"], "is not what the platform wrote" in changed["output"]) == (
            0,
            True,
        )
        with pytest.raises(NotFound):  # another's report
            bob.courses.hand_in("ml-lab", "own", "0" * 64)
        with pytest.raises(NotFound):  # not in the course
            ann.courses.exercise("ml-lab", "own")
        with pytest.raises(NotFound):
            ann.courses.hand_in("ml-lab", "own")
        with pytest.raises(NotFound):
            bob.courses.exercise("ml-lab", "none")


@pytest.mark.usefixtures("course")
def test_the_roster_has_every_student_and_late_is_said(world: World) -> None:
    with sdk(world, "stefan") as stefan:
        lines = list(stefan.courses.roster("ml-lab", "own"))
        assert [one.user for one in lines] == ["bob", "eve", "sam"]
        assert {one.next for one in lines} == {"start"}  # a program needs no lease
        assert {one.left for one in lines} == {("one 2-hour block on box",)}
        empty = result(world, "sam", "own")
        assert (empty["score"], empty["output"]) == (0, "No report was handed in.")
    with world.database.write() as session:
        session.execute(
            update(Exercise)
            .where(Exercise.name == "own")
            .values(due_at=utc_now() - timedelta(minutes=1))
        )
    with sdk(world, "bob") as bob:
        made = bob.templates.start("ada/program")
        assert made.job is not None
        end(world, {made.job: JobState.SUCCEEDED})
        assert bob.courses.hand_in("ml-lab", "own").standing.late
    assert line(world, "bob", "own").late
    late = result(world, "bob", "own")
    assert (late["score"], late["extra_data"]["late"]) == (1, True)
    with world.database.write() as session:
        opens = {"opens_at": utc_now() + timedelta(days=1), "due_at": utc_now() + timedelta(days=2)}
        session.execute(update(Exercise).where(Exercise.name == "two").values(**opens))
    assert line(world, "sam").next == "wait_for_opening"
    with sdk(world, "bob") as bob, pytest.raises((Conflict, Invalid), match="two opens on"):
        bob.courses.hand_in("ml-lab", "two")
    with sdk(world, "ada") as ada, pytest.raises(Conflict, match="1 reports were handed in"):
        ada.courses.delete("ml-lab")
