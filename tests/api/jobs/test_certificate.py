"""A job's certificate as its node reports it, and two jobs compared after the fact."""

from typing import Any

from core.states import Outcome
from tests.api.conftest import World
from tests.api.shapes import exit_record, free, heartbeat, job_spec, place

CERTIFICATE: dict[str, Any] = {
    "verdict": "pass",
    "result_class": "exact",
    "steps": 20,
    "loss": {
        "largest": 1.7e-07,
        "step": 12,
        "found": 3.1000005,
        "expected": 3.1,
        "tolerance": 1e-06,
    },
    "grad_norm": {
        "largest": 2.3e-06,
        "step": 3,
        "found": 0.9000021,
        "expected": 0.9,
        "tolerance": 1e-05,
    },
    "precision": "float32",
    "strategy": "ddp",
    "layout": {"pipeline": 1, "replicate": 2, "shard": 1, "context": 1, "tensor": 1},
    "device": "cpu",
    "torch": "2.13.0",
}
FAILED = {**CERTIFICATE, "verdict": "fail", "loss": {**CERTIFICATE["loss"], "largest": 0.03}}


def submitted(world: World, **changes: Any) -> str:
    answer = world.ann.post("/v1/jobs", json=job_spec(**changes))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def trained(world: World, losses: list[float], **changes: Any) -> str:
    """A finished job with these losses at steps 1, 2, ...; its gradient norms are 1."""
    job_id = submitted(world, **changes)
    place(world.database, job_id)
    lines = [{"step": i, "loss": loss, "grad_norm": 1.0} for i, loss in enumerate(losses, start=1)]
    batch = {"job_id": job_id, "epoch": 1, "rank": 0, "first_line": 0, "lines": lines}
    assert world.node.post("/v1/node/metrics", json=batch).status_code == 200
    beat(world, job_id, "exited", exit=exit_record(job_id), kept=True)
    free(world.database)
    return job_id


def beat(world: World, job_id: str, phase: str, *, epoch: int = 1, **seen: Any) -> None:
    observed = {"job_id": job_id, "epoch": epoch, "phase": phase, **seen}
    answer = world.node.post("/v1/node/heartbeat", json=heartbeat(observed))
    assert answer.status_code == 200, answer.text


def compared(world: World, job_id: str, other: str) -> Any:
    return world.ann.get(f"/v1/jobs/{job_id}/comparison", params={"with": other})


# ------------------------------------------------------------------------------- the certificate


def test_a_certificate_is_stored_with_the_job_while_it_runs_and_told_once(world: World) -> None:
    job_id = submitted(world, verify={"steps": 20})
    place(world.database, job_id)
    assert world.ann.get(f"/v1/jobs/{job_id}").json()["certificate"] is None
    for _ in range(2):
        beat(world, job_id, "running", step=25, certificate=CERTIFICATE)
    assert world.ann.get(f"/v1/jobs/{job_id}").json()["certificate"] == CERTIFICATE
    beat(world, job_id, "exited", exit=exit_record(job_id), certificate=CERTIFICATE)
    events = world.ann.get(f"/v1/jobs/{job_id}/events").json()["data"]
    (told,) = [event for event in events if event["kind"] == "certified"]
    assert (told["reason_code"], told["epoch"]) == ("pass", 1)
    assert told["message"] == (
        "Same curve as one rank over 20 steps: loss within 1.7e-07 (1e-06 allowed), "
        "gradient norm within 2.3e-06 (1e-05 allowed)."
    )


def test_a_failed_one_is_told_as_plainly(world: World) -> None:
    job_id = submitted(world, verify={"steps": 20})
    place(world.database, job_id)
    beat(world, job_id, "exited", exit=exit_record(job_id), certificate=FAILED)
    job = world.ann.get(f"/v1/jobs/{job_id}").json()
    assert (job["state"], job["certificate"]["verdict"]) == ("succeeded", "fail")
    events = world.ann.get(f"/v1/jobs/{job_id}/events").json()["data"]
    (told,) = [event for event in events if event["kind"] == "certified"]
    assert told["message"].startswith(
        "Different curve from one rank over 20 steps: "
        "loss off by 3.0e-02 at step 12 (1e-06 allowed)"
    )


def test_an_attempt_that_goes_on_keeps_it_and_one_that_starts_over_replaces_it(
    world: World,
) -> None:
    job_id = submitted(world, verify={"steps": 20})
    place(world.database, job_id)
    stopped = exit_record(job_id, outcome="preempted", result=None)
    beat(world, job_id, "exited", exit=stopped, kept=True, certificate=FAILED)
    free(world.database)
    assert place(world.database, job_id) == 2
    beat(world, job_id, "running", epoch=2, step=201)
    assert world.ann.get(f"/v1/jobs/{job_id}").json()["certificate"] == FAILED
    beat(world, job_id, "running", epoch=2, step=25, certificate=CERTIFICATE)
    assert world.ann.get(f"/v1/jobs/{job_id}").json()["certificate"] == CERTIFICATE
    # What the node still tells of the first attempt is history.
    beat(world, job_id, "exited", exit=stopped, kept=True, certificate=FAILED)
    assert world.ann.get(f"/v1/jobs/{job_id}").json()["certificate"] == CERTIFICATE


def test_a_node_cannot_store_just_anything(world: World) -> None:
    job_id = submitted(world)
    place(world.database, job_id)
    for wrong in ({"verdict": "perfect"}, {"torch": "2\0"}, {"loss": {}}):
        observed = {"job_id": job_id, "epoch": 1, "phase": "running"}
        observed["certificate"] = {**CERTIFICATE, **wrong}  # type: ignore[assignment]
        answer = world.node.post("/v1/node/heartbeat", json=heartbeat(observed))
        assert answer.status_code in (200, 422), answer.text
    assert "\0" not in str(world.ann.get(f"/v1/jobs/{job_id}").json()["certificate"])


# --------------------------------------------------------------------------- two jobs, afterwards


def test_two_layouts_of_one_training_are_compared_by_the_rule(world: World) -> None:
    one = trained(world, [4.0, 3.0, 2.0])
    close = trained(
        world,
        [4.0, 3.000001, 2.0, 1.5],
        name="sharded",
        parallelism={"strategy": "fsdp", "data_parallel_replicate_degree": None},
        checkpoint={"every_steps": 50},
    )
    answer = compared(world, close, one)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["job"], found["other"], found["verdict"]) == (close, one, "pass")
    assert (found["steps"], found["result_class"]) == (3, "exact")
    assert found["loss"]["step"] == 2
    assert found["loss"]["tolerance"] == 1e-6
    assert 3.3e-7 < found["loss"]["largest"] < 3.4e-7
    far = trained(world, [4.0, 3.1, 2.0])
    assert compared(world, far, one).json()["verdict"] == "fail"
    assert compared(world, one, far).json()["verdict"] == "fail"


def test_a_number_that_was_not_finite_is_a_difference(world: World) -> None:
    one, broken = trained(world, [4.0, 3.0]), trained(world, [4.0, 3.0])
    job = submitted(world)
    place(world.database, job)
    lines = [{"step": 1, "loss": 4.0, "grad_norm": 1.0}, {"step": 2, "loss": None}]
    batch = {"job_id": job, "epoch": 1, "rank": 0, "first_line": 0, "lines": lines}
    assert world.node.post("/v1/node/metrics", json=batch).status_code == 200
    found = compared(world, job, one).json()
    assert (found["verdict"], found["loss"]["step"], found["loss"]["found"]) == ("fail", 2, None)
    assert compared(world, broken, one).json()["verdict"] == "pass"


def test_a_resumed_job_counts_each_step_once_by_its_last_value(world: World) -> None:
    one = trained(world, [4.0, 3.0, 2.0])
    job = submitted(world)
    place(world.database, job)
    first = {"job_id": job, "epoch": 1, "rank": 0, "first_line": 0}
    lines = [{"step": 1, "loss": 4.0, "grad_norm": 1.0}, {"step": 2, "loss": 9.0, "grad_norm": 9.0}]
    assert world.node.post("/v1/node/metrics", json={**first, "lines": lines}).status_code == 200
    stopped = exit_record(job, outcome=Outcome.PREEMPTED, result=None)
    beat(world, job, "exited", exit=stopped, kept=True)
    free(world.database)
    place(world.database, job)
    lines = [{"step": 2, "loss": 3.0, "grad_norm": 1.0}, {"step": 3, "loss": 2.0, "grad_norm": 1.0}]
    second = {**first, "epoch": 2, "lines": lines}
    assert world.node.post("/v1/node/metrics", json=second).status_code == 200
    found = compared(world, job, one).json()
    assert (found["verdict"], found["steps"], found["loss"]["largest"]) == ("pass", 3, 0.0)


def test_other_trainings_are_not_compared_and_the_fields_are_named(world: World) -> None:
    one = trained(world, [4.0])
    other = trained(world, [4.0], model={"width": 128}, training={"seed": 7})
    answer = compared(world, one, other)
    assert (answer.status_code, answer.json()["code"]) == (422, "not_comparable")
    errors = {error["param"]: error["message"] for error in answer.json()["errors"]}
    assert set(errors) == {"model.width", "training.seed"}
    assert errors["training.seed"] == "training.seed is 1 in gpt-ddp and 7 in gpt-ddp"


def test_jobs_without_a_common_step_are_told_so(world: World) -> None:
    answer = compared(world, trained(world, [4.0]), submitted(world))
    assert (answer.status_code, answer.json()["code"]) == (409, "no_common_step")


def test_a_job_is_not_compared_with_itself(world: World) -> None:
    job_id = trained(world, [4.0])
    answer = compared(world, job_id, job_id)
    assert (answer.status_code, answer.json()["param"]) == (422, "with")


def test_both_jobs_must_be_the_viewers(world: World) -> None:
    ours, theirs = trained(world, [4.0]), world.bob.post("/v1/jobs", json=job_spec()).json()["id"]
    for job_id, other in ((ours, theirs), (theirs, ours), (ours, "job_nobodys")):
        answer = compared(world, job_id, other)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    allowed = world.staff.get(f"/v1/jobs/{ours}/comparison", params={"with": theirs})
    assert allowed.status_code == 409  # seen, but it has no steps yet
