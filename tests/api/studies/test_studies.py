"""/v1/studies: several jobs at once or none, what they found, and only for their owner."""

from typing import Any

import pytest
import yaml
from sqlalchemy import func, select

from core.process.settings import ApiSettings
from core.tables.jobs import Job
from tests.api.conftest import World, client, enrol, running_world
from tests.api.shapes import INVENTORY, exit_record, free, heartbeat, job_spec, place

FREE_DEGREE = {"strategy": "ddp", "data_parallel_replicate_degree": None}
NAIVE = {"strategy": "naive", "data_parallel_replicate_degree": None}


def submit(world: World, query: str = "ranks=1,2", **changes: Any) -> Any:
    return world.ann.post(f"/v1/studies?{query}", json=job_spec(**changes))


def submitted(world: World, query: str = "ranks=1,2", **changes: Any) -> dict[str, Any]:
    answer = submit(world, query, **changes)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def jobs_in(world: World) -> int:
    with world.database.read() as session:
        return session.scalars(select(func.count()).select_from(Job)).one()


def train(world: World, job_id: str, step_time_s: float, losses: list[float]) -> None:
    """Let the node run the job to its end, one probe at step 20."""
    place(world.database, job_id)
    (order,) = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()["attempts"]
    assert order["threads_per_rank"] == 1  # of the box's two cores, at every size
    lines: list[dict[str, Any]] = []
    for step, loss in enumerate(losses, start=1):
        line = {"step": step, "loss": loss, "grad_norm": 1.0}
        if step == 20:
            line |= {"forward_time_s": 0.2, "backward_time_s": 0.8, "exposed_comm_time_s": 0.15}
        else:
            line |= {"step_time_s": step_time_s, "tokens_per_s": 1024 / step_time_s}
        lines.append(line)
    batch = {"job_id": job_id, "epoch": 1, "rank": 0, "first_line": 0, "lines": lines}
    assert world.node.post("/v1/node/metrics", json=batch).status_code == 200
    finish(world, job_id)


def finish(world: World, job_id: str, **changes: Any) -> None:
    record = exit_record(job_id, **changes)
    observed = {"job_id": job_id, "epoch": 1, "phase": "exited", "exit": record, "kept": True}
    answer = world.node.post("/v1/node/heartbeat", json=heartbeat(observed))
    assert answer.status_code == 200, answer.text
    free(world.database)


# -------------------------------------------------------------------------------------- submitting


def test_each_size_is_an_ordinary_job(world: World) -> None:
    study = submitted(world)
    assert (study["kind"], study["name"], study["user"]) == ("strong", "gpt-ddp", "ann")
    assert not study["is_final"]
    assert [(job["label"], job["ranks"]) for job in study["jobs"]] == [
        ("1 rank", 1),
        ("2 ranks", 2),
    ]
    for member in study["jobs"]:
        job = world.ann.get(f"/v1/jobs/{member['job']}").json()
        assert (job["state"], job["study"]) == ("queued", study["id"])
        assert job["plan"]["world_size"] == member["ranks"]
        assert job["spec"]["training"] == world_training(world)
        resources = job["spec"]["resources"]
        assert (resources["node_class"], resources["threads_per_rank"]) == ("cpu2", 1)
    assert len(world.ann.get("/v1/jobs").json()["data"]) == 2


def world_training(world: World) -> Any:
    """The training part of the example job as the API fills it in."""
    answer = world.bob.post("/v1/jobs", json=job_spec())
    assert answer.json()["study"] is None
    return answer.json()["spec"]["training"]


def test_a_weak_study_grows_the_batch(world: World) -> None:
    study = submitted(world, "ranks=2&ranks=1&scaling=weak")
    plans = [world.ann.get(f"/v1/jobs/{one['job']}").json()["plan"] for one in study["jobs"]]
    assert [(plan["world_size"], plan["global_batch_size"]) for plan in plans] == [(1, 8), (2, 16)]


def test_schedules_make_a_study_at_one_size(world: World) -> None:
    study = submitted(world, "schedules=naive,GPipe,1F1B", parallelism=NAIVE)
    assert (study["kind"], [job["label"] for job in study["jobs"]]) == (
        "schedules",
        ["naive", "GPipe", "1F1B"],
    )


def test_a_study_may_be_yaml(world: World) -> None:
    answer = world.ann.post(
        "/v1/studies?ranks=1,2",
        content=yaml.safe_dump(job_spec()),
        headers={"Content-Type": "application/yaml"},
    )
    assert answer.status_code == 201, answer.text


def test_a_size_that_is_too_large_is_named_and_nothing_is_submitted(world: World) -> None:
    answer = submit(world, "ranks=1,2,4")
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "cannot_run")
    (error,) = problem["errors"]
    assert error["message"].startswith("4 ranks: resources.ranks_per_node: 4 ranks per node, but")
    assert "Nothing was submitted" in problem["detail"]
    assert jobs_in(world) == 0


def test_every_size_that_breaks_a_rule_is_named_with_the_rule(world: World) -> None:
    answer = submit(world, "ranks=1,2", training={"global_batch_size": 3})
    (error,) = answer.json()["errors"]
    assert (error["code"], error["param"]) == ("not_divisible", "training.global_batch_size")
    assert error["message"].startswith("2 ranks: ")
    assert jobs_in(world) == 0


def test_what_cannot_be_a_study_is_refused(world: World) -> None:
    for query, param, words in (
        ("", "ranks", "Give either"),
        ("ranks=1,2&schedules=naive,1F1B", "ranks", "Give either"),
        ("ranks=2", "ranks", "2 to 8 different values, not 2"),
        ("ranks=2,2", "ranks", "different"),
        ("ranks=1,two", "ranks", "'two' is not a whole number"),
        ("ranks=0,1", "ranks", "'0' is not a whole number"),
        ("ranks=1,01", "ranks", "'01' is not a whole number"),
        ("ranks=1,99999999999999", "ranks", "is not a whole number"),
        ("ranks=1,2,3,4,5,6,7,8,9", "ranks", "2 to 8"),
        ("ranks=1,2&scaling=sideways", "scaling", "scaling"),
        ("schedules=naive,upwards", "schedules", "'upwards' is not a pipeline schedule"),
        ("schedules=naive,1F1B&scaling=weak", "scaling", "given with ranks"),
        ("schedules=GPipe,1F1B", "schedules", "has no pipeline"),
    ):
        answer = submit(world, query)
        assert answer.status_code == 422, answer.text
        assert answer.json()["param"] == param, query
        assert words in answer.json()["detail"], query
    assert jobs_in(world) == 0


def test_a_key_makes_one_study(world: World) -> None:
    headers = {"Idempotency-Key": "once"}
    first, again = (
        world.ann.post("/v1/studies?ranks=1,2", json=job_spec(), headers=headers) for _ in range(2)
    )
    assert first.json()["id"] == again.json()["id"]
    assert jobs_in(world) == 2
    other = world.ann.post("/v1/studies?ranks=2,1", json=job_spec(), headers=headers)
    assert other.json()["code"] == "idempotency_mismatch"


def test_a_study_fits_into_the_queue_whole_or_not_at_all(settings: ApiSettings) -> None:
    with running_world(settings.model_copy(update={"max_queued_jobs": 2})) as world:
        assert world.ann.post("/v1/jobs", json=job_spec()).status_code == 201
        answer = submit(world)
        assert (answer.status_code, answer.json()["code"]) == (429, "queue_full")
        assert "2 more would be too many" in answer.json()["detail"]
        assert jobs_in(world) == 1


def test_all_sizes_run_on_one_class_that_can_run_them_all(world: World) -> None:
    big = {**INVENTORY, "slots": 4, "cores": 4}
    token = enrol(world.app, world.database, "big", **{"slots": 4, "cores": 4})
    beat = heartbeat(inventory=big)
    assert client(world.app, token).post("/v1/node/heartbeat", json=beat).status_code == 200
    study = submitted(world, "ranks=1,2,4")
    classes = {
        world.ann.get(f"/v1/jobs/{one['job']}").json()["spec"]["resources"]["node_class"]
        for one in study["jobs"]
    }
    assert classes == {"cpu4"}


# ------------------------------------------------------------------------------------- the result


def test_it_tells_speed_up_communication_and_curve(world: World) -> None:
    study = submitted(world)
    one, two = (member["job"] for member in study["jobs"])
    losses = [4.0 - 0.01 * step for step in range(30)]
    train(world, one, 0.8, losses)
    train(world, two, 0.5, [loss * (1 + 1e-7) for loss in losses])
    found = world.ann.get(f"/v1/studies/{study['id']}").json()
    assert found["is_final"]
    first, second = found["points"]
    assert (first["step_time_s"], second["step_time_s"]) == (0.8, 0.5)
    assert second["timed_steps"] == 19  # 30 without 10 of warm-up and the one looked into
    assert second["speed_up"] == pytest.approx(1.6)
    assert second["efficiency"] == pytest.approx(0.8)
    assert second["serial_fraction"] == pytest.approx(0.25)
    assert second["communication"] == pytest.approx(0.15)
    assert second["curve"]["verdict"] == "pass"
    assert found["summary"].startswith("2 ranks are 1.60 times as fast as 1 rank")


def test_a_failed_size_has_its_reason_instead_of_numbers(world: World) -> None:
    study = submitted(world)
    one, two = (member["job"] for member in study["jobs"])
    train(world, one, 0.8, [4.0] * 30)
    place(world.database, two)
    finish(world, two, outcome="out_of_memory", reason="Rank 1 ran out of memory.", result=None)
    found = world.ann.get(f"/v1/studies/{study['id']}").json()
    assert found["is_final"]
    assert found["points"][1]["missing"] == "Failed: Rank 1 ran out of memory."
    assert found["points"][1]["speed_up"] is None
    assert found["points"][0]["step_time_s"] == 0.8


# ------------------------------------------------------------------------------ listing, cancelling


def test_studies_are_listed_newest_first_in_pages(world: World) -> None:
    older, newer = submitted(world), submitted(world, name="second")
    page = world.ann.get("/v1/studies", params={"limit": 1}).json()
    assert ([one["id"] for one in page["data"]], page["has_more"]) == ([newer["id"]], True)
    rest = world.ann.get("/v1/studies", params={"after": newer["id"]}).json()
    assert [one["id"] for one in rest["data"]] == [older["id"]]


def test_cancelling_ends_what_has_not_ended(world: World) -> None:
    study = submitted(world)
    one, two = (member["job"] for member in study["jobs"])
    train(world, one, 0.8, [4.0] * 30)
    for _ in range(2):  # twice is as good as once
        answer = world.ann.post(f"/v1/studies/{study['id']}/cancel")
        assert answer.status_code == 200, answer.text
    states = {job["job"]: job["state"] for job in answer.json()["jobs"]}
    assert states == {one: "succeeded", two: "cancelled"}
    assert answer.json()["is_final"]


def test_a_study_is_its_owners(world: World) -> None:
    study = submitted(world)["id"]
    for caller, expected in ((world.bob, 404), (world.staff, 200), (world.nobody, 401)):
        assert caller.get(f"/v1/studies/{study}").status_code == expected
    assert world.bob.post(f"/v1/studies/{study}/cancel").status_code == 404
    assert world.bob.get("/v1/studies").json()["data"] == []
    theirs = world.staff.get("/v1/studies", params={"user": "ann"}).json()["data"]
    assert [one["id"] for one in theirs] == [study]


def test_a_study_is_streamed_to_its_end_and_to_its_owner_alone(world: World) -> None:
    study = submitted(world)
    stream = f"/v1/studies/{study['id']}/stream"
    assert world.bob.get(stream).status_code == 404
    world.ann.post(f"/v1/studies/{study['id']}/cancel")
    _, _, kind, document, *_ = world.ann.get(stream).text.split("\n")
    assert kind == "event: end"
    assert '"is_final":true' in document
