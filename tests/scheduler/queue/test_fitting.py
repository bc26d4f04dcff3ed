"""Which classes a job fits: by the plan of its submission where that was made for the same
hardware, else by a new one."""

from typing import Any

import pytest

from core.database.database import Database
from core.tables.jobs import Job
from scheduler.queue import fitting
from scheduler.queue.fitting import Fitting
from strategies.plan.hardware import Hardware
from strategies.plan.planner import Plan
from tests.scheduler.world import CPU2, CPU8, World

BOTH = {hardware.class_name: (1, hardware) for hardware in (CPU2, CPU8)}


@pytest.fixture
def world(database: Database) -> World:
    return World(database)


@pytest.fixture
def planned_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The classes for which a plan was made."""
    names: list[str] = []
    plan_on = fitting.plan_on

    def told(spec: Any, hardware: Hardware) -> Any:
        names.append(hardware.class_name)
        return plan_on(spec, hardware)

    monkeypatch.setattr(fitting, "plan_on", told)
    return names


def learned(world: World, job_id: str, classes: dict[str, tuple[int, Hardware]]) -> Fitting:
    found = Fitting()
    found.offer(classes)
    with world.database.read() as session:
        found.learn(session, [job_id])
    return found


def test_the_plan_of_its_submission_answers_for_the_hardware_that_it_was_made_for(
    world: World, planned_on: list[str]
) -> None:
    job_id = world.job(ranks=2)  # planned on cpu8
    found = learned(world, job_id, BOTH)
    assert found.classes_for(job_id) == ("cpu2", "cpu8")
    assert planned_on == ["cpu2"]
    memory_of_cpu8 = CPU8.model_copy(update={"memory_gib": 31.0})
    found.offer(BOTH | {"cpu8": (2, memory_of_cpu8)})
    assert found.classes_for(job_id) == ("cpu2", "cpu8")
    assert planned_on == ["cpu2", "cpu2", "cpu8"]
    found.offer(BOTH | {"cpu8": (3, CPU8.model_copy(update={"memory_gib": 0.01}))})
    assert found.classes_for(job_id) == ("cpu2",)


def test_jobs_of_the_same_training_share_a_plan_unless_one_may_run_out_of_memory(
    world: World, planned_on: list[str]
) -> None:
    jobs = [world.job(wall=wall) for wall in ("10min", "20min")]
    jobs += [world.job(wall="10min", allow_oom=True), world.job(ranks=1)]
    found = Fitting()
    found.offer({"cpu2": BOTH["cpu2"]})
    with world.database.read() as session:
        found.learn(session, jobs)
    assert [found.classes_for(job_id) for job_id in jobs] == [("cpu2",)] * 4
    assert planned_on == ["cpu2"] * 3
    narrow = CPU2.model_copy(update={"memory_gib": 0.01})
    found.offer({"cpu2": (2, narrow)})
    assert [found.classes_for(job_id) for job_id in jobs] == [(), (), ("cpu2",), ()]


def test_a_plan_that_does_not_tell_its_hardware_is_made_again(
    world: World, planned_on: list[str]
) -> None:
    job_id = world.job(ranks=2)
    with world.database.write() as session:
        job = session.get_one(Job, job_id)
        job.plan = {key: value for key, value in job.plan.items() if key != "made_for"}
    assert learned(world, job_id, BOTH).classes_for(job_id) == ("cpu2", "cpu8")
    assert planned_on == ["cpu2", "cpu8"]


def test_both_plans_ask_for_the_same_slots_of_memory(world: World) -> None:
    """A job that needs more than a slot's share of the memory: by its old plan and by a new one."""
    job_id = world.job(ranks=1)
    stored = Plan.model_validate(world.get_job(job_id).plan)
    narrow = CPU8.model_copy(update={"memory_gib": 3 * stored.needed_gib})  # not an eighth of it
    spare = learned(world, job_id, {"cpu8": (1, CPU8)})
    assert spare.memory_slots(job_id) == {}
    found = learned(world, job_id, {"cpu8": (1, narrow)})
    with world.database.write() as session:
        job = session.get_one(Job, job_id)
        spec = fitting.stored_spec(job.spec)
        assert spec is not None
        job.plan = fitting.plan_on(spec, narrow).model_dump(mode="json")
    again = learned(world, job_id, {"cpu8": (1, narrow)})
    assert found.memory_slots(job_id) == again.memory_slots(job_id)
    assert found.memory_slots(job_id)["cpu8"] > 1


def test_other_classes_are_planned_only_when_they_are_asked_for(
    world: World, planned_on: list[str]
) -> None:
    job_id = world.job(ranks=2, node_class="cpu8")
    found = learned(world, job_id, BOTH)
    assert found.classes_for(job_id) == ("cpu8",)
    assert planned_on == []
    assert found.other_classes(job_id) == found.other_classes(job_id) == ("cpu2",)
    assert planned_on == ["cpu2"]
