"""The node protocol: observed sets up, desired sets down, everything stored exactly once."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import select

from api.nodes.heartbeat import UNWRITTEN
from core.base.clock import utc_now
from core.jobs import attempts
from core.leases.leases import lock_nodes
from core.states import Outcome
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.nodes import Node
from tests.api.conftest import World, client, enrol
from tests.api.shapes import INVENTORY, exit_record, free, heartbeat, job_spec, place


def submit(world: World, **changes: Any) -> str:
    answer = world.ann.post("/v1/jobs", json=job_spec(**changes))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def observed(job_id: str, phase: str, epoch: int = 1, **changes: Any) -> dict[str, Any]:
    return {"job_id": job_id, "epoch": epoch, "phase": phase, **changes}


def beat(world: World, *seen: dict[str, Any], **changes: Any) -> dict[str, Any]:
    answer = world.node.post("/v1/node/heartbeat", json=heartbeat(*seen, **changes))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def send_metrics(
    world: World, job_id: str, first_line: int, lines: list[dict[str, Any]], epoch: int = 1
) -> int:
    batch = {
        "job_id": job_id,
        "epoch": epoch,
        "rank": 0,
        "first_line": first_line,
        "lines": lines,
    }
    answer = world.node.post("/v1/node/metrics", json=batch)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["next_line"])


def upload(world: World, content: bytes) -> str:
    sha256 = hashlib.sha256(content).hexdigest()
    answer = world.node.put(f"/v1/node/files/{sha256}", content=content)
    assert answer.status_code in (200, 201), answer.text
    return sha256


def state_of(world: World, job_id: str) -> str:
    return str(world.ann.get(f"/v1/jobs/{job_id}").json()["state"])


def node_id(world: World) -> str:
    with world.database.read() as session:
        return session.scalars(select(Node.id)).one()


def last_seen(world: World) -> datetime:
    with world.database.read() as session:
        seen = session.scalars(select(Node.last_seen_at)).one()
        assert seen is not None
        return seen


def test_a_node_is_ready_after_its_first_heartbeat_and_its_hardware_names_its_class(
    world: World,
) -> None:
    (node,) = world.ann.get("/v1/nodes").json()["data"]
    assert (node["name"], node["node_class"], node["state"]) == ("box", "cpu2", "ready")
    assert node["reachable"] is True
    assert node["hardware"]["slots"] == 2
    assert node["free_at"] is None


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_heartbeat_without_news_does_not_wait_for_bookings(world: World) -> None:
    before = last_seen(world)
    with world.database.write() as booking:
        lock_nodes(booking, [node_id(world)])
        beat(world)
        assert last_seen(world) == before, "the next heartbeat writes it"
    beat(world)
    assert last_seen(world) > before


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("news", ["dirty", "restarted", "not written for long"])
def test_a_heartbeat_with_news_waits_for_its_turn(world: World, news: str) -> None:
    changes = {"dirty": {"clean": False}, "restarted": {"incarnation": "another"}}.get(news, {})
    if news == "not written for long":
        with world.database.write() as session:
            node = session.get_one(Node, node_id(world))
            node.last_seen_at = utc_now() - 2 * UNWRITTEN
    before = last_seen(world)
    with ThreadPoolExecutor(1) as pool:
        with world.database.write() as booking:
            lock_nodes(booking, [node_id(world)])
            waiting = pool.submit(beat, world, **changes)
            with pytest.raises(TimeoutError):
                waiting.result(0.2)
        waiting.result(30)
    assert last_seen(world) > before


def test_an_order_for_a_part_of_a_node_says_how_many_slots_there_are(world: World) -> None:
    quad = client(world.app, enrol(world.app, world.database, "quad", cores=4, slots=4))
    told = {**INVENTORY, "cores": 4, "slots": 4}

    def order(**sharing: str) -> dict[str, Any]:
        beat = heartbeat(inventory={**told, **sharing})
        (found,) = quad.post("/v1/node/heartbeat", json=beat).json()["attempts"]
        return dict(found)

    quad.post("/v1/node/heartbeat", json=heartbeat(inventory=told))
    place(world.database, submit(world), "quad", num_slots=2)
    assert "slots_of_node" not in order(), "an older worker would refuse a field it does not know"
    assert (order(sharing="full")["slots_of_node"], order(sharing="full")["slots"]) == (4, [0, 1])
    place(world.database, submit(world))
    (whole,) = beat(world)["attempts"]
    assert "slots_of_node" not in whole


def test_a_job_goes_from_assignment_to_its_end(world: World) -> None:
    job_id = submit(world)
    place(world.database, job_id)

    (order,) = beat(world)["attempts"]
    assert (order["job_id"], order["epoch"]) == (job_id, 1)
    assert order["dataset"] is None
    assert order["resume"] is None
    assert order["stop"] is None
    assert order["spec"]["model"]["width"] == 160
    assert "resources" not in order["spec"]
    # 20 min of wall time end before the usable end of a two-hour lease.
    assert 1190 <= order["deadlines"]["stop_in_s"] <= 1200
    assert order["deadlines"]["stop_reason"] == "time_limit"

    beat(world, observed(job_id, "starting", launcher="warm"))
    assert state_of(world, job_id) == "starting"
    beat(world, observed(job_id, "running", step=3))
    assert state_of(world, job_id) == "running"

    orders = beat(world, observed(job_id, "exited", exit=exit_record(job_id)))
    assert orders == {"attempts": [], "forget": []}  # its files are not all here yet
    job = world.ann.get(f"/v1/jobs/{job_id}").json()
    assert job["state"] == "succeeded"
    assert job["result"]["loss_last"] == 1.8
    assert job["used_s"] == 33

    orders = beat(world, observed(job_id, "exited", exit=exit_record(job_id), kept=True))
    assert orders["forget"] == [{"job_id": job_id, "epoch": 1}]
    (attempt,) = world.ann.get(f"/v1/jobs/{job_id}/attempts").json()["data"]
    assert (attempt["outcome"], attempt["launcher"]) == ("succeeded", "warm")
    kinds = [event["kind"] for event in world.ann.get(f"/v1/jobs/{job_id}/events").json()["data"]]
    assert kinds[0] == "queued"
    assert kinds[-1] == "succeeded"


def test_the_first_metrics_line_says_that_a_job_runs(world: World) -> None:
    job_id = submit(world)
    place(world.database, job_id)
    beat(world, observed(job_id, "starting"))
    assert send_metrics(world, job_id, 0, [{"step": 1, "loss": 4.5, "tokens_per_s": 900.0}]) == 1
    job = world.ann.get(f"/v1/jobs/{job_id}").json()
    assert (job["state"], job["step"], job["loss"]) == ("running", 1, 4.5)
    assert job["tokens_per_s"] == 900.0


def test_cancelling_a_running_job_orders_a_stop(world: World) -> None:
    job_id = submit(world)
    place(world.database, job_id)
    beat(world, observed(job_id, "running"))
    answer = world.ann.post(f"/v1/jobs/{job_id}/cancel").json()
    assert (answer["state"], answer["desired"]) == ("stopping", "cancel")
    (order,) = beat(world, observed(job_id, "running"))["attempts"]
    assert order["stop"]["reason"] == "cancelled"
    record = exit_record(job_id, outcome="cancelled", reason="Stopped as asked.", result=None)
    beat(world, observed(job_id, "exited", exit=record))
    assert state_of(world, job_id) == "cancelled"


def test_pause_keeps_the_job_and_resume_goes_on_from_its_checkpoint(world: World) -> None:
    job_id = submit(world)
    place(world.database, job_id)
    beat(world, observed(job_id, "running"))
    sha256 = upload(world, b"weights")
    report = {
        "job_id": job_id,
        "epoch": 1,
        "step": 200,
        "files": [{"path": "rank0.distcp", "sha256": sha256, "size": 7}],
    }
    assert world.node.post("/v1/node/checkpoints", json=report).status_code == 204
    assert world.node.post("/v1/node/checkpoints", json=report).status_code == 204  # again: once
    assert world.ann.post(f"/v1/jobs/{job_id}/pause").json()["state"] == "stopping"
    record = exit_record(job_id, outcome="paused", reason="Stopped as asked.", result=None)
    beat(world, observed(job_id, "exited", exit=record, kept=True))
    assert state_of(world, job_id) == "paused"
    assert world.ann.post(f"/v1/jobs/{job_id}/resume").json()["state"] == "queued"

    free(world.database)
    assert place(world.database, job_id) == 2
    (order,) = beat(world)["attempts"]
    assert order["resume"]["step"] == 200
    assert world.node.get(f"/v1/node/files/{sha256}").content == b"weights"
    (checkpoint,) = world.ann.get(f"/v1/jobs/{job_id}/checkpoints").json()["data"]
    assert (checkpoint["step"], checkpoint["size"]) == (200, 7)


def test_a_restarted_node_has_lost_what_ran_on_it(world: World) -> None:
    job_id = submit(world)
    place(world.database, job_id)
    beat(world, observed(job_id, "running"))
    assert beat(world, boot_id="boot-2")["attempts"] == []
    job = world.ann.get(f"/v1/jobs/{job_id}").json()
    assert (job["state"], job["reason_code"]) == ("queued", "node_lost")


def test_an_exit_on_disk_wins_over_the_restart_of_its_node(world: World) -> None:
    job_id = submit(world)
    place(world.database, job_id)
    beat(world, observed(job_id, "running"))
    beat(world, observed(job_id, "exited", exit=exit_record(job_id)), boot_id="boot-2")
    assert state_of(world, job_id) == "succeeded"


def test_an_attempt_that_the_node_does_not_list_is_noted_and_forgiven(world: World) -> None:
    job_id = submit(world)
    place(world.database, job_id)
    beat(world, observed(job_id, "running"))
    assert missing_since(world, job_id) is None
    beat(world)
    first = missing_since(world, job_id)
    assert first is not None
    beat(world)
    assert missing_since(world, job_id) == first
    beat(world, observed(job_id, "running"))
    assert missing_since(world, job_id) is None


def missing_since(world: World, job_id: str) -> object:
    with world.database.read() as session:
        return session.scalar(
            select(AttemptPart.missing_since)
            .join(Attempt, Attempt.id == AttemptPart.attempt_id)
            .where(Attempt.job_id == job_id)
        )


def test_an_attempt_that_was_given_up_and_replaced_is_fenced_off(world: World) -> None:
    job_id = submit(world)
    place(world.database, job_id)
    beat(world, observed(job_id, "running"))
    send_metrics(world, job_id, 0, [{"step": 1, "loss": 4.0}])
    give_up(world, job_id)
    free(world.database)
    assert place(world.database, job_id) == 2

    late = {"job_id": job_id, "epoch": 1, "rank": 0}
    metrics = {**late, "first_line": 1, "lines": [{"step": 2, "loss": 0.1}]}
    logs = {**late, "stream": "stdout", "first_byte": 0, "size": 1, "content": "x"}
    for path, body in (("metrics", metrics), ("logs", logs)):
        answer = world.node.post(f"/v1/node/{path}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "stale_epoch"), path
    assert world.ann.get(f"/v1/jobs/{job_id}").json()["loss"] == 4.0
    orders = beat(world, observed(job_id, "exited"))
    assert orders["forget"] == [{"job_id": job_id, "epoch": 1}]


def test_a_node_is_not_clean_while_what_was_given_up_still_runs_there(world: World) -> None:
    job_id = submit(world)
    place(world.database, job_id)
    beat(world, observed(job_id, "running"), clean=True)
    assert is_clean(world)
    give_up(world, job_id)
    beat(world, observed(job_id, "running"), clean=True)
    assert not is_clean(world)
    beat(world, observed(job_id, "exited"), clean=True)
    assert is_clean(world)


def is_clean(world: World) -> bool:
    with world.database.read() as session:
        return bool(session.query(Node.clean).scalar())


def give_up(world: World, job_id: str) -> None:
    """Do what the scheduler's reaper does."""
    with world.database.write() as session:
        job = session.get_one(Job, job_id)
        attempt = attempts.live_attempt(session, job)
        assert attempt is not None
        attempts.conclude(
            session,
            job,
            attempt,
            Outcome.NODE_LOST,
            message="Lost.",
            now=utc_now(),
            actor="test",
        )


def test_a_node_speaks_only_of_its_own_attempts(world: World) -> None:
    job_id = submit(world)
    batch = {"job_id": job_id, "epoch": 1, "rank": 0, "first_line": 0, "lines": [{"step": 1}]}
    answer = world.node.post("/v1/node/metrics", json=batch)
    assert answer.status_code == 404


def test_metrics_are_stored_once_however_often_they_are_sent(world: World) -> None:
    job_id = submit(world)
    place(world.database, job_id)
    lines = [{"step": n, "loss": 1 / (n + 1), "lr": 0.1} for n in range(100)]
    assert send_metrics(world, job_id, 0, lines[:40]) == 40
    assert send_metrics(world, job_id, 0, lines[:40]) == 40  # all of it again
    assert send_metrics(world, job_id, 30, lines[30:60]) == 60  # overlapping
    assert send_metrics(world, job_id, 70, lines[70:]) == 60  # a gap: go back
    assert send_metrics(world, job_id, 60, lines[60:]) == 100
    view = world.ann.get(f"/v1/jobs/{job_id}/metrics", params={"keys": "loss"}).json()
    (series,) = view["series"]
    assert view["keys"] == ["loss", "lr"]
    assert series["steps"] == list(range(100))
    assert series["values"] == [1 / (n + 1) for n in range(100)]
    assert series["points"] == 100


def test_a_value_that_is_not_a_number_is_null(world: World) -> None:
    job_id = submit(world)
    place(world.database, job_id)
    body = (
        f'{{"job_id": "{job_id}", "epoch": 1, "rank": 0, "first_line": 0, "lines": '
        '[{"step": 1, "loss": NaN}, {"step": 2, "loss": Infinity}, {"step": 3, "loss": null}, '
        '{"step": 4, "loss": 1.0}, {"step": 4, "event": "checkpoint_saved"}]}'
    )
    answer = world.node.post(
        "/v1/node/metrics", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.json() == {"next_line": 5}
    (series,) = world.ann.get(f"/v1/jobs/{job_id}/metrics").json()["series"]
    assert series["values"] == [None, None, None, 1.0]
    assert world.ann.get(f"/v1/jobs/{job_id}").json()["loss"] == 1.0


@pytest.mark.parametrize(
    ("line", "word"),
    [({"loss": 1.0}, "step"), ({"step": 1, "a\x00b": 1.0}, "name"), ({"step": -1}, "step")],
)
def test_a_wrong_metrics_line_is_refused_as_a_whole(
    world: World, line: dict[str, Any], word: str
) -> None:
    job_id = submit(world)
    place(world.database, job_id)
    batch = {"job_id": job_id, "epoch": 1, "rank": 0, "first_line": 0, "lines": [line]}
    answer = world.node.post("/v1/node/metrics", json=batch)
    assert answer.status_code == 422
    assert word in answer.json()["detail"]
    assert world.ann.get(f"/v1/jobs/{job_id}/metrics").json()["series"] == []
