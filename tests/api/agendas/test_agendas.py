"""/v1/agendas: jobs for one lease, all or none; whether they fit, what is late; their owner's."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import func, select

from api.agendas.schemas import NewAgenda
from api.jobs.submission import overridden
from core.agendas.agenda import AgendaItem, outlook
from core.base.clock import utc_now
from core.jobs import attempts
from core.leases import leases, node_slots
from core.policy.grid import HOUR, hour_floor
from core.spec.spec import JobSpec
from core.states import LeaseState, Outcome
from core.tables.agendas import Agenda
from core.tables.jobs import Job
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.tables.people import User
from strategies.plan.hardware import Hardware
from strategies.plan.planner import plan
from tests.api.conftest import World, client
from tests.api.shapes import job_spec
from tests.core.people import add_node

pytestmark = pytest.mark.race

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
WALL = 20 * 60
LAB = Path(__file__).parents[3] / "examples" / "agendas" / "lab-1.yaml"


def agenda(*jobs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A lab of two jobs of 20 minutes, or of these."""
    common = job_spec()
    del common["name"]
    return {
        "name": "lab-1",
        "common": common,
        "jobs": list(jobs) or [{"name": "one"}, {"name": "two"}],
        **changes,
    }


def wall(name: str, wall_time: str, **resources: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"wall_time": wall_time, **resources}}


def lease(world: World, *, start: datetime | None = None, hours: int = 2, user: str = "ann") -> str:
    """A booked lease, from tomorrow on if nothing else is said; its id."""
    now = utc_now()
    start = start or hour_floor(now) + 24 * HOUR
    with world.database.write() as session:
        node = session.scalars(select(Node).where(Node.name == "box")).one()
        owner = session.scalars(select(User.id).where(User.name == user)).one()
        return leases.take(
            session,
            user_id=owner,
            node=node,
            kind=LeaseKind.BOOKED,
            start=start,
            end=start + hours * HOUR,
            grace_s=300,
            now=now,
            actor="test",
            message="Booked.",
        ).id


def submit(world: World, lease_id: str, body: dict[str, Any], query: str = "", **more: Any) -> Any:
    return world.ann.post(f"/v1/agendas?lease={lease_id}{query}", json=body, **more)


def submitted(world: World, lease_id: str, body: dict[str, Any], query: str = "") -> dict[str, Any]:
    answer = submit(world, lease_id, body, query)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def jobs_in(world: World) -> int:
    with world.database.read() as session:
        return session.scalars(select(func.count()).select_from(Job)).one()


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def start_job(world: World, job_id: str, lease_id: str, *, ago_s: float) -> None:
    """Do what scheduler and node do: it began so long ago, in its lease."""
    begun = utc_now() - timedelta(seconds=ago_s)
    with world.database.write() as session:
        job = session.get_one(Job, job_id)
        held = session.get_one(Lease, lease_id)
        node = session.get_one(Node, held.node_id)
        if not node_slots.lease_slots(session, held):
            assert node_slots.assign(session, held)
        attempt = attempts.assign(
            session, job, [attempts.NodeAssignment(node, held, (0, 1))], now=begun, actor="test"
        )
        assert attempt is not None
        attempts.run(session, job, attempt, now=begun, actor="test")


def end_job(world: World, job_id: str) -> None:
    """It has failed just now."""
    with world.database.write() as session:
        job = session.get_one(Job, job_id)
        attempt = attempts.live_attempt(session, job)
        assert attempt is not None
        attempts.conclude(
            session,
            job,
            attempt,
            Outcome.USER_ERROR,
            message="It broke.",
            now=utc_now(),
            actor="test",
        )


# --------------------------------------------------------------------------------- before the lease


def test_before_the_lease_each_job_has_its_time(world: World) -> None:
    lease_id = lease(world)
    answer = world.ann.post(f"/v1/agendas/plan?lease={lease_id}", json=agenda())
    found = answer.json()
    assert answer.status_code == 200, found
    one, two = found["jobs"]
    begins = at(found["begins"])
    assert (at(one["planned_start"]), at(one["planned_end"])) == (
        begins,
        begins + timedelta(minutes=20),
    )
    assert at(two["planned_start"]) == begins + timedelta(minutes=21)
    assert found["fits"]
    assert found["spare_s"] == (115 - 41) * 60
    assert found["summary"].startswith("It fits with 1h 14min to spare")
    assert (found["slots"], found["node_class"], found["first_cut"]) == (2, "cpu2", None)
    assert "the others continue" in found["rules"]
    assert jobs_in(world) == 0


@on_sqlite
def test_before_booking_a_block_is_enough(world: World) -> None:
    body = agenda(wall("one", "90min"), wall("two", "40min"))
    plan = "/v1/agendas/plan?node_class=cpu2&hours="
    two_hours = world.ann.post(f"{plan}2", json=body).json()
    assert (two_hours["fits"], two_hours["spare_s"]) == (False, -16 * 60)
    assert two_hours["first_cut"] == 2
    assert two_hours["lease"] is None
    assert "two would be stopped" in two_hours["summary"]
    assert world.ann.post(f"{plan}3", json=body).json()["fits"]


@on_sqlite
def test_jobs_beside_each_other_take_less(world: World) -> None:
    small = {"ranks_per_node": 1}
    body = agenda(wall("one", "90min", **small), wall("two", "90min", **small), side_by_side=True)
    body["common"]["parallelism"] = {"strategy": "single"}
    plan = "/v1/agendas/plan?node_class=cpu2&hours=2"
    assert world.ann.post(plan, json=body).json()["fits"]
    assert not world.ann.post(plan, json={**body, "side_by_side": False}).json()["fits"]


@on_sqlite
def test_what_is_wrong_with_any_job_is_named_and_nothing_is_submitted(world: World) -> None:
    lease_id = lease(world)
    wide = {"parallelism": {"data_parallel_replicate_degree": 4}}
    body = agenda(
        {"name": "one"},
        {"name": "two", "training": {"steps": 0}},
        {"name": "three", **wide, **wall("three", "10min", ranks_per_node=4)},
        {"name": "four", "lease": lease_id},
        {"name": "five", "resources": {"nodes": 2}},
        {"name": "six", "resources": {"node_class": "a100x4"}},
        {"name": "seven", "resources": {"wall_time": None}},
    )
    answer = submit(world, lease_id, body)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "cannot_run")
    told = {error["param"].split(".", 2)[1]: error for error in problem["errors"]}
    assert set(told) == {"1", "2", "3", "4", "5", "6"}
    assert told["1"]["param"] == "jobs.1.training.steps"
    assert told["1"]["message"].startswith("job 2 (two): training.steps")
    assert "4 ranks per node" in told["2"]["message"]
    assert told["3"]["param"] == "jobs.3.lease"
    assert told["4"]["param"] == "jobs.4.resources.nodes"
    assert "2 nodes were requested, but the agenda's lease has 1" in told["4"]["message"]
    assert "a100x4" in told["5"]["message"]
    assert "the longest time that the job may run" in told["6"]["message"]
    assert jobs_in(world) == 0


@on_sqlite
def test_yaml_is_read_with_its_lines(world: World) -> None:
    lease_id = lease(world)
    text = yaml.safe_dump(agenda(), sort_keys=False)
    headers = {"Content-Type": "application/yaml"}
    path = f"/v1/agendas?lease={lease_id}"
    wrong = text.replace("layers: 4", "layers: four")
    problem = world.ann.post(path, content=wrong, headers=headers).json()
    line = wrong.split("\n").index("    layers: four") + 1
    assert f"layers (line {line})" in problem["detail"]
    wrong = text + "\nfast: true"
    assert "fast" in world.ann.post(path, content=wrong, headers=headers).json()["detail"]
    assert world.ann.post(path, content=text, headers=headers).status_code == 201


@on_sqlite
def test_where_it_is_to_run_must_be_clear_and_yours(world: World) -> None:
    mine, theirs = lease(world), lease(world, user="bob", start=hour_floor(utc_now()) + 48 * HOUR)
    for query, words in (
        ("", "either lease, or hours"),
        (f"lease={mine}&hours=3", "either lease"),
        ("hours=3", "either lease"),
        ("hours=3&node_class=h100", "no node of class 'h100' here. Classes: cpu2"),
        (f"lease={theirs}", "you have no such lease"),
        ("lease=lease_none", "you have no such lease"),
    ):
        answer = world.ann.post(f"/v1/agendas/plan?{query}", json=agenda())
        assert answer.status_code == 422, answer.text
        assert words in answer.json()["detail"], query
    for body in ({"name": "x", "jobs": []}, {"jobs": [{}]}, {**agenda(), "on_failure": "panic"}):
        assert (
            world.ann.post("/v1/agendas/plan?hours=3&node_class=cpu2", json=body).status_code == 422
        )


# --------------------------------------------------------------------------------------- submitting


def test_its_jobs_are_ordinary_jobs_of_the_lease(world: World) -> None:
    lease_id = lease(world)
    found = submitted(world, lease_id, agenda(on_failure="stop"))
    assert (found["lease"], found["user"], found["node"]) == (lease_id, "ann", "box")
    assert not found["is_final"]
    for member, name in zip(found["jobs"], ("one", "two"), strict=True):
        job = world.ann.get(f"/v1/jobs/{member['job']}").json()
        assert (job["state"], job["name"], job["lease"]) == ("queued", name, lease_id)
        assert job["agenda"] == found["id"]
        assert (member["standing"], member["wall_time_s"]) == ("waiting", WALL)
    assert world.ann.get(f"/v1/agendas/{found['id']}").json()["jobs"] == found["jobs"]


def test_what_does_not_fit_is_refused_unless_it_is_wanted_anyway(world: World) -> None:
    lease_id = lease(world)
    body = agenda(wall("one", "90min"), wall("two", "40min"))
    answer = submit(world, lease_id, body)
    assert (answer.status_code, answer.json()["code"]) == (409, "over_time")
    assert "It is too long by 16min" in answer.json()["detail"]
    assert jobs_in(world) == 0
    found = submitted(world, lease_id, body, "&anyway=true")
    assert not found["fits"]
    assert [job["fits"] for job in found["jobs"]] == [True, False]


def test_a_key_makes_one_agenda_and_a_lease_has_one_at_a_time(world: World) -> None:
    lease_id = lease(world)
    headers = {"Idempotency-Key": "once"}
    first, again = (submit(world, lease_id, agenda(), headers=headers) for _ in range(2))
    assert first.json()["id"] == again.json()["id"]
    assert jobs_in(world) == 2
    other = submit(world, lease_id, agenda(name="lab-2"))
    assert (other.status_code, other.json()["code"]) == (409, "lease_has_agenda")
    assert world.ann.post(f"/v1/agendas/{first.json()['id']}/cancel").status_code == 200
    assert submit(world, lease_id, agenda(name="lab-2")).status_code == 201


def test_of_several_at_once_one_gets_the_lease(world: World) -> None:
    lease_id = lease(world)
    callers = [client(world.app, world.tokens["ann"]) for _ in range(6)]

    def ask(number: int) -> int:
        body = agenda(name=f"lab-{number}")
        return callers[number].post(f"/v1/agendas?lease={lease_id}", json=body).status_code

    with ThreadPoolExecutor(len(callers)) as pool:
        answers = sorted(pool.map(ask, range(len(callers))))
    assert answers == [201] + [409] * 5
    assert jobs_in(world) == 2


@on_sqlite
def test_leases_that_touch_are_one(world: World) -> None:
    start = hour_floor(utc_now()) + 24 * HOUR
    first, _ = lease(world, start=start, hours=1), lease(world, start=start + HOUR, hours=1)
    found = submitted(world, first, agenda(wall("one", "50min"), wall("two", "50min")))
    assert at(found["usable_end"]) == start + timedelta(minutes=115)
    with world.database.write() as session:
        for row in session.scalars(select(Lease)):
            row.state = LeaseState.ENDED if row.id == first else LeaseState.ACTIVE
    assert world.ann.get(f"/v1/agendas/{found['id']}").json()["usable_end"] == found["usable_end"]


@on_sqlite
def test_a_swapped_lease_takes_its_agenda_along(world: World) -> None:
    start = hour_floor(utc_now()) + 24 * HOUR
    lease_id = lease(world, start=start)
    found = submitted(world, lease_id, agenda())
    block = {"node": "box", "start": (start + 3 * HOUR).isoformat(), "hours": 2}
    swapped = world.ann.post(f"/v1/leases/{lease_id}/swap", json=block)
    assert swapped.status_code == 201, swapped.text
    now = world.ann.get(f"/v1/agendas/{found['id']}").json()
    assert now["lease"] == swapped.json()["id"]
    assert at(now["begins"]) == start + 3 * HOUR


# ---------------------------------------------------------------------------------- several nodes


def together(world: World, *, nodes: int = 2, start: datetime | None = None) -> list[str]:
    """Leases of ann on so many nodes, booked together; their ids."""
    now = utc_now()
    start = start or hour_floor(now) + 24 * HOUR
    with world.database.write() as session:
        box = session.scalars(select(Node).where(Node.name == "box")).one()
        more = [
            add_node(
                session,
                f"box-{number}",
                class_name=box.class_name,
                slots=box.slots,
                last_seen_at=now,
                created_at=now,
            )
            for number in range(2, nodes + 1)
        ]
        taken = leases.take_together(
            session,
            [box, *more],
            [leases.PLAIN] * nodes,
            user_id=session.scalars(select(User.id).where(User.name == "ann")).one(),
            kind=LeaseKind.BOOKED,
            start=start,
            end=start + 2 * HOUR,
            grace_s=300,
            now=now,
            actor="test",
            message="Booked.",
        )
        return [one.id for one in taken]


def leases_of(world: World, found: dict[str, Any]) -> list[list[str]]:
    """The leases that each job of an agenda names."""
    specs = [world.ann.get(f"/v1/jobs/{job['job']}").json()["spec"] for job in found["jobs"]]
    return [spec["leases"] or [spec["lease"]] for spec in specs]


WIDE = {"parallelism": {"data_parallel_replicate_degree": 4}}


@on_sqlite
def test_an_agenda_runs_on_all_nodes_that_were_booked_together(world: World) -> None:
    held = together(world)
    body = agenda(
        {**wall("wide", "40min", nodes=2), **WIDE},
        wall("left", "60min"),
        wall("right", "60min"),
        side_by_side=True,
    )
    found = submitted(world, held[1], body)
    assert (found["leases"], found["nodes"], found["slots"]) == (held, 2, 2)
    assert [job["nodes"] for job in found["jobs"]] == [2, 1, 1]
    assert leases_of(world, found) == [held, [held[0]], [held[1]]]
    begins = at(found["begins"])
    starts = [at(job["start"]) - begins for job in found["jobs"]]
    assert starts == [timedelta(0), timedelta(minutes=41), timedelta(minutes=41)]
    for one in held:
        listed = world.ann.get("/v1/agendas", params={"lease": one}).json()["data"]
        assert [agenda["id"] for agenda in listed] == [found["id"]]
        other = submit(world, one, agenda())
        assert other.json()["code"] == "lease_has_agenda"


@on_sqlite
def test_slots_of_several_nodes_are_not_added_up(world: World) -> None:
    """Three jobs of a whole node each: on two nodes two of them run at a time."""
    jobs = [wall(name, "60min") for name in ("one", "two", "three")]
    body = agenda(*jobs, side_by_side=True)
    answer = submit(world, together(world)[0], body)
    assert (answer.status_code, answer.json()["code"]) == (409, "over_time")
    assert "It is too long by 6min" in answer.json()["detail"]
    assert "three would be stopped" in answer.json()["detail"]
    assert jobs_in(world) == 0


@on_sqlite
def test_more_nodes_than_were_booked_are_refused_with_the_number(world: World) -> None:
    held = together(world)
    three = {"parallelism": {"data_parallel_replicate_degree": 6}}
    answer = submit(world, held[0], agenda({**wall("big", "20min", nodes=3), **three}))
    (problem,) = answer.json()["errors"]
    assert problem["param"] == "jobs.0.resources.nodes"
    assert "3 nodes were requested, but the agenda's lease has 2" in problem["message"]
    with world.database.write() as session:
        session.get_one(Lease, held[1]).state = LeaseState.ENDED
    gone = submit(world, held[0], agenda())
    assert f"{held[1]}, booked together with it, is ended" in gone.json()["detail"]


@on_sqlite
def test_a_block_on_several_nodes_can_be_planned_before_it_is_booked(world: World) -> None:
    together(world)
    body = agenda({**wall("wide", "40min", nodes=2), **WIDE})
    plan = "/v1/agendas/plan?node_class=cpu2&hours=1&nodes="
    assert world.ann.post(f"{plan}2", json=body).json()["fits"]
    refused = world.ann.post(f"{plan}1", json=body)
    assert "jobs.0.resources.nodes" in [one["param"] for one in refused.json()["errors"]]
    many = world.ann.post(f"{plan}3", json=body)
    assert (many.status_code, many.json()["param"]) == (422, "nodes")


@on_sqlite
def test_a_job_on_one_of_the_nodes_keeps_a_wide_one_waiting(world: World) -> None:
    held = together(world, start=hour_floor(utc_now()) - HOUR // 2)
    other = world.ann.post("/v1/jobs", json=job_spec(lease=held[1])).json()["id"]
    body = agenda({**wall("wide", "40min", nodes=2), **WIDE})
    with world.database.write() as session:
        session.get_one(Job, other).queued_at = utc_now() - HOUR
    found = submitted(world, held[0], body, "&anyway=true")
    hand_over = timedelta(seconds=WALL + 60)
    assert at(found["jobs"][0]["start"]) - at(found["begins"]) == hand_over
    assert f"({other}) holds 2 of the 2 slots on 1 of the 2 nodes from" in found["summary"]


# --------------------------------------------------------------------------------- during the lease


def test_what_has_not_begun_in_time_is_late_and_the_rest_with_it(world: World) -> None:
    lease_id = lease(world, start=hour_floor(utc_now()) - HOUR, hours=3)
    found = submitted(world, lease_id, agenda())
    with world.database.write() as session:
        session.get_one(Agenda, found["id"]).created_at -= timedelta(minutes=10)
    late = world.ann.get(f"/v1/agendas/{found['id']}").json()
    assert [job["late_s"] for job in late["jobs"]] == pytest.approx([600, 600], abs=30)
    assert "Late: one and two, by 1" in late["summary"]


def test_a_running_job_is_told_by_its_speed_and_an_ended_one_as_it_was(world: World) -> None:
    lease_id = lease(world, start=hour_floor(utc_now()) - HOUR, hours=4)
    found = submitted(world, lease_id, agenda())
    one = found["jobs"][0]["job"]
    start_job(world, one, lease_id, ago_s=120)
    with world.database.write() as session:
        session.get_one(Job, one).last_step = 100
    first, second = world.ann.get(f"/v1/agendas/{found['id']}").json()["jobs"]
    assert (first["standing"], second["standing"]) == ("running", "waiting")
    likely_s = (at(first["likely_end"]) - utc_now()).total_seconds()
    assert likely_s == pytest.approx(360, abs=20)  # 100 of 400 steps took 120 s
    latest_s = (at(first["end"]) - utc_now()).total_seconds()
    assert latest_s == pytest.approx(WALL - 120, abs=20)
    end_job(world, one)
    after = world.ann.get(f"/v1/agendas/{found['id']}").json()
    assert [job["standing"] for job in after["jobs"]] == ["failed", "waiting"]
    gap = at(after["jobs"][1]["start"]) - at(after["jobs"][0]["end"])
    assert gap == timedelta(seconds=60)  # the hand-over


def test_cancelling_ends_what_waits_and_leaves_what_runs(world: World) -> None:
    lease_id = lease(world, start=hour_floor(utc_now()), hours=3)
    found = submitted(world, lease_id, agenda())
    one = found["jobs"][0]["job"]
    start_job(world, one, lease_id, ago_s=60)
    for _ in range(2):  # twice is as good as once
        answer = world.ann.post(f"/v1/agendas/{found['id']}/cancel")
        assert answer.status_code == 200, answer.text
    assert [job["standing"] for job in answer.json()["jobs"]] == ["running", "cancelled"]
    assert world.ann.get(f"/v1/jobs/{one}").json()["state"] == "running"


@on_sqlite
def test_other_jobs_of_the_lease_are_counted_and_named(world: World) -> None:
    lease_id = lease(world, start=hour_floor(utc_now()) - HOUR, hours=4)
    spec = job_spec(lease=lease_id)
    spec["resources"]["wall_time"] = "1h"
    other = world.ann.post("/v1/jobs", json=spec).json()["id"]
    hour = timedelta(seconds=3600 + 60)  # and the hand-over
    waits = world.ann.post(f"/v1/agendas/plan?lease={lease_id}", json=agenda()).json()
    assert at(waits["jobs"][0]["start"]) == at(waits["begins"]) + hour
    assert f"({other}) holds 2 of the 2 slots from" in waits["summary"]
    found = submitted(world, lease_id, agenda())
    start_job(world, other, lease_id, ago_s=1800)
    runs = world.ann.get(f"/v1/agendas/{found['id']}").json()
    begun = at(world.ann.get(f"/v1/jobs/{other}").json()["started_at"])
    first = runs["jobs"][0]
    assert at(first["start"]) == begun + hour
    assert first["late_s"] == int((begun + hour - at(first["planned_start"])).total_seconds())
    assert f"({other}) holds 2 of the 2 slots until" in runs["summary"]
    end_job(world, other)
    gone = world.ann.get(f"/v1/agendas/{found['id']}").json()
    assert other not in gone["summary"]
    assert at(gone["jobs"][0]["start"]) < begun + hour


@on_sqlite
def test_jobs_of_other_leases_and_of_other_people_are_not_counted(world: World) -> None:
    start = hour_floor(utc_now()) + 24 * HOUR
    lease_id = lease(world, start=start)
    later = lease(world, start=start + 5 * HOUR)
    elsewhere = job_spec(lease=later)
    assert world.ann.post("/v1/jobs", json=elsewhere).status_code == 201
    assert world.ann.post("/v1/jobs", json=job_spec()).status_code == 201
    found = world.ann.post(f"/v1/agendas/plan?lease={lease_id}", json=agenda()).json()
    assert at(found["jobs"][0]["start"]) == start
    assert "holds" not in found["summary"]


# -------------------------------------------------------------------------------------------- whose


@on_sqlite
def test_agendas_are_listed_newest_first_in_pages_and_by_lease(world: World) -> None:
    first = lease(world)
    second = lease(world, start=hour_floor(utc_now()) + 48 * HOUR)
    older, newer = (submitted(world, one, agenda()) for one in (first, second))
    page = world.ann.get("/v1/agendas", params={"limit": 1}).json()
    assert ([one["id"] for one in page["data"]], page["has_more"]) == ([newer["id"]], True)
    rest = world.ann.get("/v1/agendas", params={"after": newer["id"]}).json()
    assert [one["id"] for one in rest["data"]] == [older["id"]]
    of_lease = world.ann.get("/v1/agendas", params={"lease": first}).json()
    assert [one["id"] for one in of_lease["data"]] == [older["id"]]


@on_sqlite
def test_an_agenda_is_its_owners(world: World) -> None:
    found = submitted(world, lease(world), agenda())["id"]
    for caller, expected in ((world.bob, 404), (world.staff, 200), (world.nobody, 401)):
        assert caller.get(f"/v1/agendas/{found}").status_code == expected
    assert world.bob.post(f"/v1/agendas/{found}/cancel").status_code == 404
    assert world.bob.get("/v1/agendas").json()["data"] == []
    theirs = world.staff.get("/v1/agendas", params={"user": "ann"}).json()["data"]
    assert [one["id"] for one in theirs] == [found]


# -------------------------------------------------------------------------------------- the example


def test_the_lab_of_the_course_fits_into_its_block() -> None:
    lab = NewAgenda.model_validate(yaml.safe_load(LAB.read_text()))
    a100x4 = Hardware(
        class_name="a100x4", device="cuda", slots=4, memory_gib=39.6, model="NVIDIA A100"
    )
    items = []
    for own in lab.jobs:
        spec = JobSpec.model_validate(overridden(lab.common, own))
        made = plan(spec, nodes=1, ranks_per_node=spec.resources.ranks_per_node, hardware=a100x4)
        assert made.runnable, (spec.name, made.problems)
        items.append(AgendaItem(spec.name, made.ranks_per_node, spec.resources.wall_time))
    begins = datetime(2026, 12, 1, 13, tzinfo=UTC)
    found = outlook(
        items,
        begins=begins,
        usable_end=begins + timedelta(hours=2, minutes=55),
        now=begins,
        slots=a100x4.slots,
        side_by_side=lab.side_by_side,
    )
    assert found.spare_s == 11 * 60  # as the example's own words say


@on_sqlite
def test_an_agenda_is_streamed_to_its_end_and_to_its_owner_alone(world: World) -> None:
    made = submitted(world, lease(world), agenda())
    stream = f"/v1/agendas/{made['id']}/stream"
    assert world.bob.get(stream).status_code == 404
    world.ann.post(f"/v1/agendas/{made['id']}/cancel")
    answer = world.ann.get(stream)
    assert answer.headers["content-type"].startswith("text/event-stream")
    _, _, kind, document, *_ = answer.text.split("\n")
    assert kind == "event: end"
    assert '"is_final":true' in document
