"""Hours booked, used and useful, and what quotas leave."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from core.base.clock import utc_now
from core.base.ids import IdKind, new_id
from core.states import AttemptState, Outcome
from core.tables.files import Checkpoint
from core.tables.jobs import Attempt, AttemptPart
from core.tables.leases import Lease, Occupancy
from tests.api.admin.test_cleanups import apply_policy, lease_of
from tests.api.conftest import World
from tests.api.shapes import job_spec, place

DAY = datetime(2026, 11, 18, tzinfo=UTC)  # a Wednesday


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """The races and the SQL that differs are tested on both."""
    return sqlite_url


def at(hours: float) -> datetime:
    return DAY + timedelta(hours=hours)


def worked(world: World, *, outcome: Outcome, saved_at: float | None) -> None:
    """Ann's job held `box` from 10 to 14, ran from 10 to 13, in steps from 11 to 13."""
    job_id = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job_id)
    with world.database.write() as session:
        attempt = session.scalars(select(Attempt).where(Attempt.job_id == job_id)).one()
        attempt.state, attempt.outcome = AttemptState.EXITED, outcome
        attempt.started_at, attempt.ended_at = at(10), at(13)
        attempt.first_step_at, attempt.last_step_at = at(11), at(13)
        lease = session.get_one(Lease, attempt.lease_id)
        lease.hold_start, lease.hold_end = at(10), at(14)
        held = session.scalars(select(Occupancy).where(Occupancy.lease_id == lease.id)).one()
        held.hold_start, held.hold_end = at(10), at(14)
        part = session.scalars(
            select(AttemptPart).where(AttemptPart.attempt_id == attempt.id)
        ).one()
        part.ended_at = at(13)
        if saved_at is not None:
            session.add(
                Checkpoint(
                    id=new_id(IdKind.CHECKPOINT),
                    job_id=job_id,
                    epoch=attempt.epoch,
                    step=100,
                    size=1,
                    files=[],
                    created_at=at(saved_at),
                )
            )


def usage(world: World, **params: Any) -> dict[str, Any]:
    query = {"start": DAY.isoformat(), "end": at(24).isoformat(), "per": "day", **params}
    answer = world.staff.get("/v1/usage", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_what_succeeded_was_useful_from_its_first_step_to_its_last(world: World) -> None:
    worked(world, outcome=Outcome.SUCCEEDED, saved_at=None)
    [row] = usage(world)["rows"]
    # Two slots: 4 h held, 3 h with a job, 2 h of steps.
    assert row == {
        "period": "2026-11-18",
        "name": "ann",
        "booked_hours": 8.0,
        "used_hours": 6.0,
        "useful_hours": 4.0,
    }
    [by_node] = usage(world, by="node")["rows"]
    assert (by_node["name"], by_node["booked_hours"]) == ("box", 8.0)
    [by_lab] = usage(world, by="lab")["rows"]
    assert by_lab["name"] == "(no lab)"


def test_of_what_failed_only_what_was_saved_is_useful(world: World) -> None:
    worked(world, outcome=Outcome.USER_ERROR, saved_at=11.5)
    [row] = usage(world)["rows"]
    assert (row["used_hours"], row["useful_hours"]) == (6.0, 1.0)


def test_of_what_failed_without_a_checkpoint_nothing_is_useful(world: World) -> None:
    worked(world, outcome=Outcome.DIVERGED, saved_at=None)
    [row] = usage(world)["rows"]
    assert (row["used_hours"], row["useful_hours"]) == (6.0, 0.0)


def test_what_ran_as_a_guest_is_the_nodes_until_it_has_a_walk_in_of_its_own(world: World) -> None:
    worked(world, outcome=Outcome.SUCCEEDED, saved_at=None)
    with world.database.write() as session:
        session.scalars(select(Lease)).one().hold_start = at(11.5)
        session.scalars(select(Occupancy)).one().hold_start = at(11.5)
    [row] = usage(world)["rows"]
    assert (row["booked_hours"], row["used_hours"], row["useful_hours"]) == (5.0, 3.0, 3.0)
    [by_node] = usage(world, by="node")["rows"]
    assert by_node["used_hours"] == 6.0


def test_days_are_those_of_the_zone_and_add_up(world: World) -> None:
    worked(world, outcome=Outcome.SUCCEEDED, saved_at=None)
    # In Auckland (+13:00) the 11th hour UTC begins a new day.
    found = usage(world, zone="Pacific/Auckland")
    assert [(row["period"], row["booked_hours"]) for row in found["rows"]] == [
        ("2026-11-18", 2.0),
        ("2026-11-19", 6.0),
    ]
    assert found["total"][0]["booked_hours"] == 8.0
    assert usage(world, zone="Pacific/Auckland", per="week")["rows"][0]["booked_hours"] == 8.0


def test_one_sees_ones_own_use_and_who_leads_sees_the_labs(world: World) -> None:
    worked(world, outcome=Outcome.SUCCEEDED, saved_at=None)
    query = {"start": DAY.isoformat(), "end": at(24).isoformat()}
    assert world.bob.get("/v1/usage", params=query).json()["rows"] == []
    assert len(world.ann.get("/v1/usage", params=query).json()["rows"]) == 1
    lab = world.admin.post("/v1/labs", json={"name": "vision"}).json()
    world.admin.post("/v1/labs/vision/members", json={"user": "bob", "is_lead": True})
    with world.database.write() as session:
        session.scalars(select(Lease)).one().lab_id = lab["id"]
    [seen] = world.bob.get("/v1/usage", params={**query, "by": "lab"}).json()["rows"]
    assert (seen["name"], seen["used_hours"]) == ("vision", 6.0)


def test_it_comes_as_csv(world: World) -> None:
    worked(world, outcome=Outcome.SUCCEEDED, saved_at=None)
    query = {"start": DAY.isoformat(), "end": at(24).isoformat(), "per": "day", "format": "csv"}
    answer = world.staff.get("/v1/usage", params=query)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.text == (
        "period,user,booked_hours,used_hours,useful_hours\n2026-11-18,ann,8.0,6.0,4.0\n"
    )


def test_wrong_ranges_are_refused(world: World) -> None:
    backwards = {"start": at(1).isoformat(), "end": at(0).isoformat()}
    assert world.ann.get("/v1/usage", params=backwards).json()["param"] == "start"
    endless = {"start": "2001-01-01T00:00:00Z", "end": "2026-01-01T00:00:00Z"}
    assert world.ann.get("/v1/usage", params=endless).status_code == 422
    assert world.ann.get("/v1/usage", params={"zone": "Nowhere"}).json()["param"] == "zone"


def test_a_walk_in_that_is_running_counts_up_to_now(world: World) -> None:
    job_id = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job_id)
    with world.database.write() as session:
        attempt = session.scalars(select(Attempt)).one()
        attempt.started_at = utc_now() - timedelta(minutes=30)
        session.scalars(select(Lease)).one().hold_start = attempt.started_at
    [row] = world.ann.get("/v1/usage").json()["total"]
    assert 1.0 <= row["used_hours"] < 1.1


def test_what_quotas_leave_is_told_in_words(world: World) -> None:
    [before] = world.ann.get("/v1/me/quotas").json()["quotas"]
    assert (before["policy"], before["nodes"], before["window_end"]) == ("default", ["box"], None)
    apply_policy(world, slots=2)
    lease_of(world, "ann", 5)
    [quota] = world.ann.get("/v1/me/quotas").json()["quotas"]
    assert (quota["policy"], quota["left"][0]["quota"]) == ("course", "main")
    assert "one" in quota["left"][0]["text"]
    [bobs] = world.bob.get("/v1/me/quotas").json()["quotas"]
    assert bobs["left"][0]["text"] != quota["left"][0]["text"]
