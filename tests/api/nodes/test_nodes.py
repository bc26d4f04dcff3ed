"""Nodes: how they join, what class they get, what staff do with them."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select
from starlette.testclient import TestClient

from api.nodes.node_classes import derived_name
from core.base.clock import utc_now
from core.leases import node_slots
from core.policy.document import load
from core.tables.jobs import Event
from core.tables.nodes import Node
from core.wire.messages import Gpu, Inventory
from tests.api.conftest import World, client, enrol
from tests.api.shapes import INVENTORY, heartbeat, job_spec, place
from tests.api.times import next_hour


def gpus(name: str, count: int, memory_gib: float = 80.0) -> list[Gpu]:
    return [Gpu(index=n, name=name, memory_gib=memory_gib) for n in range(count)]


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 4, "a100x4"),
        ("NVIDIA H200", 8, "h200x8"),
        ("NVIDIA GeForce RTX 4090", 2, "rtx4090x2"),
        ("Tesla V100-PCIE-16GB", 1, "v100x1"),
        ("???", 1, "gpux1"),
    ],
)
def test_gpus_name_their_class(name: str, count: int, expected: str) -> None:
    inventory = Inventory.model_validate({**INVENTORY, "gpus": gpus(name, count), "slots": count})
    assert derived_name(inventory) == expected


def test_a_class_compiles_if_each_of_its_nodes_can(world: World) -> None:
    crate = client(world.app, enrol(world.app, world.database, "crate"))
    crate.post("/v1/node/heartbeat", json=heartbeat())
    spec = {**job_spec(), "compile": True}
    assert world.ann.post("/v1/jobs", json=spec).status_code == 201
    inventory = {**INVENTORY, "no_compiler": "a C++ compiler (g++)"}
    crate.post("/v1/node/heartbeat", json=heartbeat(inventory=inventory))
    refused = world.ann.post("/v1/jobs", json=spec)
    [error] = refused.json()["errors"]
    assert (error["param"], error["code"]) == ("compile", "no_compiler")
    assert "lacks a C++ compiler (g++)" in error["message"]
    crate.post("/v1/node/heartbeat", json=heartbeat())  # somebody has installed it
    assert world.ann.post("/v1/jobs", json=spec).status_code == 201


def test_a_plan_keeps_to_the_least_memory_that_a_node_gives_one_job(world: World) -> None:
    crate = client(world.app, enrol(world.app, world.database, "crate"))
    crate.post("/v1/node/heartbeat", json=heartbeat(inventory={**INVENTORY, "job_memory_gib": 4}))
    inventory = {**INVENTORY, "job_memory_gib": 0.3}
    world.node.post("/v1/node/heartbeat", json=heartbeat(inventory=inventory))
    hardware = world.ann.get("/v1/nodes/crate").json()["hardware"]
    assert hardware["job_memory_gib"] == 0.3
    refused = world.ann.post("/v1/jobs", json=job_spec())
    [error] = refused.json()["errors"]
    assert error["code"] == "does_not_fit"
    assert "(16.00 GiB, 0.30 GiB at most for one job) leaves 0.15 GiB" in error["message"]
    allowed = job_spec(resources={"allow_oom": True})
    assert world.ann.post("/v1/jobs", json=allowed).status_code == 201
    world.node.post("/v1/node/heartbeat", json=heartbeat())  # its administrator took it away
    assert world.ann.get("/v1/nodes/crate").json()["hardware"]["job_memory_gib"] == 4
    assert world.ann.post("/v1/jobs", json=job_spec()).status_code == 201


def test_a_class_takes_the_speeds_that_a_node_has_measured(world: World) -> None:
    speeds = {
        **{"float32": 40.0, "tf32": 80.0, "float16": 160.0, "bfloat16": 160.0, "float8": None},
        **{"link_gb_per_s": 25.0, "source": "measured on this node with torch 2.13.0"},
    }
    gpu = {"index": 0, "name": "A GPU of tomorrow", "memory_gib": 80.0}
    inventory = {**INVENTORY, "gpus": [gpu], "slots": 1}
    world.node.post("/v1/node/heartbeat", json=heartbeat(inventory=inventory))
    node = world.ann.get("/v1/nodes").json()["data"][0]
    assert node["hardware"]["speeds"] is None
    measured = {**INVENTORY, "gpus": [{**gpu, "speeds": speeds}], "slots": 1}
    world.node.post("/v1/node/heartbeat", json=heartbeat(inventory=measured))
    node = world.ann.get("/v1/nodes").json()["data"][0]
    assert node["hardware"]["speeds"] == {**speeds, "memory_gb_per_s": None}
    wrong = {**INVENTORY, "gpus": [{**gpu, "speeds": {**speeds, "float32": -1}}], "slots": 1}
    refused = world.node.post("/v1/node/heartbeat", json=heartbeat(inventory=wrong))
    assert refused.status_code == 422


def test_an_administrator_sets_the_network_of_a_class(world: World) -> None:
    node = world.admin.get("/v1/nodes/box").json()
    assert node["fabric"] == {"interface": "", "adapters": "", "programs": "relay"}
    path = f"/v1/admin/node-classes/{node['node_class']}/fabric"
    wanted = {"interface": "ib0", "adapters": "mlx5_0,mlx5_1:1", "programs": "host"}
    assert world.ann.get(path).status_code == 403
    for who in (world.ann, world.staff):
        assert who.put(path, json=wanted).status_code == 403
    for _ in range(2):  # the second time changes nothing
        assert world.admin.put(path, json=wanted).json() == wanted
    assert world.staff.get(path).json() == wanted
    assert world.ann.get("/v1/nodes/box").json()["fabric"] == wanted
    acts = world.admin.get("/v1/admin/audit").json()["data"]
    assert [act["details"] for act in acts if act["kind"] == "node_class.fabric"] == [wanted]
    for field, wrong in (
        ("interface", "eth0; reboot"),
        ("interface", "sixteen-letters-"),
        ("adapters", "mlx5_0,"),
        ("programs", "all"),
    ):
        refused = world.admin.put(path, json={field: wrong})
        assert (refused.status_code, refused.json()["errors"][0]["param"]) == (422, field)
    assert world.staff.get(path).json() == wanted
    assert world.admin.get("/v1/admin/node-classes/none/fabric").status_code == 404


def test_an_enrolment_token_works_once_and_names_the_node(world: World) -> None:
    made = world.staff.post("/v1/admin/enrolments", json={"name": "gpu1", "node_class": "lab"})
    assert made.status_code == 201
    assert made.json()["token"] in made.json()["command"]
    body = {"token": made.json()["token"], "inventory": INVENTORY}
    first = world.nobody.post("/v1/node/enrol", json=body)
    assert (first.status_code, first.json()["name"]) == (201, "gpu1")
    assert world.nobody.post("/v1/node/enrol", json=body).status_code == 401
    node = world.ann.get("/v1/nodes/gpu1").json()
    assert (node["node_class"], node["state"]) == ("lab", "pending")
    wrong = world.nobody.post("/v1/node/enrol", json={**body, "token": "x" * 40})
    assert wrong.status_code == 401
    for name in ("a b", "-x", ".x", "a/b", "../b", "x" * 254, ""):
        refused = world.staff.post("/v1/admin/enrolments", json={"name": name})
        assert refused.status_code == 422, name


COURSE = Path(__file__).parents[3] / "examples" / "policies" / "course.yaml"


def join(world: World, name: str, **fields: object) -> TestClient:
    """A ready node that has joined over HTTP, as its worker."""
    made = world.staff.post("/v1/admin/enrolments", json={"name": name, **fields})
    assert made.status_code == 201, made.text
    body = {"token": made.json()["token"], "inventory": INVENTORY}
    joined = world.nobody.post("/v1/node/enrol", json=body)
    assert joined.status_code == 201, joined.text
    node = client(world.app, joined.json()["node_token"])
    assert node.post("/v1/node/heartbeat", json=heartbeat()).status_code == 200
    return node


def test_every_node_that_an_example_names_joins_and_can_be_booked(world: World) -> None:
    text = re.sub("2025-02-[12]0T", f"{utc_now():%Y-%m-%d}T", COURSE.read_text())
    text = text.replace("2025-02-28T", f"{utc_now() + timedelta(days=14):%Y-%m-%d}T")
    text = text.replace(f'opens_at: "{utc_now():%Y-%m-%d}T00:00"', "opens_at: now")
    policy = load(text)
    classes = {node: name for name, one in policy.classes.items() for node in one.nodes}
    assert {"307G3Q3", "P3-GPU-009"} <= set(classes)
    for name, node_class in classes.items():
        join(world, name, node_class=node_class)
    yaml = {"Content-Type": "application/yaml"}
    plan = world.staff.post("/v1/policies", content=text, headers=yaml).json()
    assert not [said for said in plan["advice"] if "there is no node" in said]
    for name in classes:
        hours = 3 if name == "307G3Q3" else 2
        block = {"node": name.swapcase(), "start": next_hour(24), "hours": hours}
        lease = world.staff.post("/v1/leases", json=block)
        assert (lease.status_code, lease.json().get("node")) == (201, name), lease.text
        assert world.staff.delete(f"/v1/leases/{lease.json()['id']}").status_code == 204


def test_two_spellings_of_a_name_are_one_node_and_the_first_one_is_kept(world: World) -> None:
    join(world, "P3-GPU-009.lab.example.org")
    join(world, "p3-gpu-009.LAB.example.org")
    names = [node["name"] for node in world.ann.get("/v1/nodes").json()["data"]]
    assert names == ["box", "P3-GPU-009.lab.example.org"]
    assert world.ann.get("/v1/nodes/p3-gpu-009.lab.example.org").json()["name"] == names[1]
    act = world.staff.post("/v1/admin/nodes/P3-gpu-009.lab.example.org/drain")
    assert (act.status_code, act.json()["name"]) == (200, names[1])
    twice = {"nodes": ["box", "BOX"], "start": next_hour(2), "hours": 1}
    assert (
        world.ann.post("/v1/leases", json=twice).json()["detail"] == "nodes: a node is named twice."
    )


def test_a_node_that_is_enrolled_again_keeps_its_place_and_loses_its_old_token(
    world: World,
) -> None:
    before = world.ann.get("/v1/nodes/box").json()["id"]
    token = enrol(world.app, world.database, "box")
    assert world.node.post("/v1/node/heartbeat", json=heartbeat()).status_code == 401
    again = client(world.app, token)
    assert again.post("/v1/node/heartbeat", json=heartbeat()).status_code == 200
    assert world.ann.get("/v1/nodes/box").json()["id"] == before


def test_nodes_of_different_memory_get_different_classes(world: World) -> None:
    for name, memory_gib in (("crate", 16.5), ("barn", 64.0)):
        enrol(world.app, world.database, name, memory_gib=memory_gib)
    classes = {
        node["name"]: node["node_class"] for node in world.ann.get("/v1/nodes").json()["data"]
    }
    assert classes == {"box": "cpu2", "crate": "cpu2", "barn": "cpu2-64g"}
    planned = world.ann.post("/v1/jobs/plan", json={"spec": job_spec()}).json()
    assert [plan["node_class"] for plan in planned["plans"]] == ["cpu2", "cpu2-64g"]
    assert planned["chosen"] == "cpu2"


def test_changed_hardware_changes_the_plans(world: World) -> None:
    spec = job_spec(model={"width": 2560, "layers": 16, "heads": 8})
    before = world.ann.post("/v1/jobs", json=spec)
    assert before.json()["code"] == "does_not_fit"
    grown = {**INVENTORY, "memory_gib": 256.0}
    world.node.post("/v1/node/heartbeat", json=heartbeat(inventory=grown))
    assert world.ann.get("/v1/nodes/box").json()["hardware"]["memory_gib"] == 256.0
    assert world.ann.post("/v1/jobs", json=spec).status_code == 201


def test_a_node_goes_into_maintenance_once_nothing_runs_on_it(world: World) -> None:
    job = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job)
    busy = world.staff.post("/v1/admin/nodes/box/maintenance").json()
    assert busy["state"] == "draining"
    assert "Goes into maintenance for stefan" in busy["reason"]
    assert world.staff.post("/v1/admin/nodes/box/resume").json()["state"] == "ready"
    enrol(world.app, world.database, "crate")
    assert world.staff.post("/v1/admin/nodes/crate/maintenance").status_code == 409  # pending
    world.staff.post("/v1/admin/nodes/crate/resume")
    idle = world.staff.post("/v1/admin/nodes/crate/maintenance").json()
    assert (idle["state"], idle["reason"]) == (
        "maintenance",
        "In maintenance by stefan.",
    )


def test_what_is_in_the_way_of_retiring_is_listed(world: World) -> None:
    assert world.staff.get("/v1/admin/nodes/box/in-the-way").json()["leases"] == []
    body = {"node": "box", "start": next_hour(3), "hours": 2}
    assert world.ann.post("/v1/leases", json=body).status_code == 201
    job = world.bob.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job)
    found = world.staff.get("/v1/admin/nodes/box/in-the-way").json()
    assert found["jobs"] == [{"id": job, "name": "gpt-ddp", "user": "bob"}]
    assert [lease["user"] for lease in found["leases"]] == ["bob", "ann"]
    refused = world.staff.post("/v1/admin/nodes/box/retire").json()
    assert refused["code"] == "in_the_way"
    assert {item["param"] for item in refused["errors"]} == {
        job,
        *(lease["id"] for lease in found["leases"]),
    }
    assert refused["errors"][0]["message"] == "Job gpt-ddp of bob is running on it."
    assert refused["errors"][2]["message"].startswith("The lease of ann from 20")
    assert world.ann.get("/v1/admin/nodes/box/in-the-way").status_code == 403
    not_done = world.staff.post("/v1/admin/nodes/box/in-the-way")
    assert (not_done.status_code, not_done.headers["allow"]) == (405, "GET")
    assert not_done.json()["detail"] == "POST is not allowed at this address; use GET."
    assert world.staff.post("/v1/admin/nodes/box/polish").status_code == 422


def test_staff_drain_quarantine_and_retire(world: World) -> None:
    for act, state in (
        ("drain", "draining"),
        ("drain", "draining"),
        ("quarantine", "quarantined"),
        ("resume", "ready"),
    ):
        answer = world.staff.post(f"/v1/admin/nodes/box/{act}")
        assert answer.json()["state"] == state, act
        assert act == "drain" or "stefan" in answer.json()["reason"]
    assert world.staff.post("/v1/admin/nodes/box/explode").status_code == 422
    assert world.staff.post("/v1/admin/nodes/nowhere/drain").status_code == 404

    job = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job)
    busy = world.staff.post("/v1/admin/nodes/box/retire")
    assert (busy.status_code, "1 running" in busy.json()["detail"]) == (409, True)

    enrol(world.app, world.database, "crate")
    assert world.staff.post("/v1/admin/nodes/crate/retire").json()["state"] == "retired"
    assert "crate" not in world.ann.get("/v1/nodes").text
    assert world.staff.post("/v1/admin/nodes/crate/resume").status_code == 409
    assert world.staff.post("/v1/admin/enrolments", json={"name": "crate"}).status_code == 409
    kinds = [entry["kind"] for entry in world.staff.get("/v1/admin/audit").json()["data"]]
    assert kinds[:1] == ["node.retire"]
    assert "node.drain" in kinds
    page = world.staff.get("/v1/admin/audit", params={"limit": 2}).json()
    rest = world.staff.get("/v1/admin/audit", params={"after": page["data"][-1]["id"]}).json()
    assert page["has_more"] is True
    assert page["data"][-1]["id"] > rest["data"][0]["id"]


def test_a_silent_node_is_shown_as_out_of_reach(world: World) -> None:
    from datetime import timedelta

    from sqlalchemy import update

    from core.base.clock import utc_now
    from core.tables.nodes import Node

    with world.database.write() as session:
        session.execute(update(Node).values(last_seen_at=utc_now() - timedelta(minutes=2)))
    assert world.ann.get("/v1/nodes/box").json()["reachable"] is False
    world.node.post("/v1/node/heartbeat", json=heartbeat())
    assert world.ann.get("/v1/nodes/box").json()["reachable"] is True


def test_machines_can_ask_how_it_is_going(world: World) -> None:
    world.ann.post("/v1/jobs", json=job_spec())
    assert world.nobody.get("/healthz").json()["status"] == "ok"
    assert world.nobody.get("/readyz").json()["status"] == "ok"
    text = world.nobody.get("/metrics").text
    assert 'trainyard_jobs{state="queued"} 1.0' in text
    assert 'trainyard_nodes{state="ready"} 1.0' in text
    assert 'route="/v1/jobs",status="201"' in text
    assert "trainyard_oldest_heartbeat_seconds" in text
    assert "gpt-ddp" not in text


def test_a_gpus_health_reaches_the_scheduler_and_the_nodes_history(world: World) -> None:
    def inventory(**fault: str) -> dict[str, object]:
        gpus = [
            {"index": n, "name": "NVIDIA A100", "memory_gib": 39.6, "uuid": f"GPU-{n}"}
            for n in range(4)
        ]
        return {**INVENTORY, "slots": 4, "gpus": [*gpus[:2], {**gpus[2], **fault}, gpus[3]]}

    worker = client(world.app, enrol(world.app, world.database, "gpu-1", **inventory()))
    lost = {"health": "lost", "reason": "The GPU has fallen off the bus."}
    for told, unfit in ((inventory(**lost), [2]), (inventory(), [])):
        answer = worker.post("/v1/node/heartbeat", json=heartbeat(inventory=told))
        assert answer.status_code == 200
        with world.database.read() as session:
            node = session.scalars(select(Node).where(Node.name == "gpu-1")).one()
            assert node_slots.out_of_service(session, node) == unfit
            notes = list(session.scalars(select(Event).where(Event.subject == node.id)))
            assert node.class_name == "a100x4", "the class counts all four"
    assert [one.message for one in notes if one.kind.startswith("gpu_")] == [
        "GPU 2 of gpu-1 gets no jobs. The GPU has fallen off the bus.",
        "GPU 2 of gpu-1 is fit for jobs again.",
    ]


def test_staff_take_a_slot_out_of_service_and_only_they_put_it_back(world: World) -> None:
    path = "/v1/admin/nodes/box/slots/1"
    assert world.ann.post(f"{path}/quarantine").status_code == 403
    for _ in range(2):  # the second time changes nothing
        node = world.staff.post(f"{path}/quarantine").json()
        assert [slot["state"] for slot in node["slots"]] == ["ready", "quarantined"]
    assert node["slots"][1]["reason"] == "Taken out of service by stefan."
    other = {**INVENTORY, "python": "3.13"}  # a new report: nothing is wrong with it
    assert world.node.post("/v1/node/heartbeat", json=heartbeat(inventory=other)).is_success
    assert world.ann.get("/v1/nodes/box").json()["slots"][1]["state"] == "quarantined"
    for _ in range(2):
        node = world.staff.post(f"{path}/resume").json()
        assert [slot["state"] for slot in node["slots"]] == ["ready", "ready"]
    acts = [act["kind"] for act in world.admin.get("/v1/admin/audit").json()["data"]]
    assert [act for act in acts if act.startswith("slot.")] == ["slot.resume", "slot.quarantine"]
    refused = world.staff.post("/v1/admin/nodes/box/slots/2/quarantine")
    assert refused.status_code == 404
    assert "its slots are 0 to 1" in refused.json()["detail"]


def test_a_gpu_that_its_node_calls_unfit_is_not_put_back_by_hand(world: World) -> None:
    gpus = [
        {"index": n, "name": "NVIDIA A100", "memory_gib": 39.6, "uuid": f"GPU-{n}"}
        for n in range(2)
    ]
    gpus[1] |= {"health": "lost", "reason": "It has fallen off the bus."}
    enrol(world.app, world.database, "gpu-1", **{**INVENTORY, "slots": 2, "gpus": gpus})
    path = "/v1/admin/nodes/gpu-1/slots/1"
    refused = world.staff.post(f"{path}/resume")
    assert refused.status_code == 409
    assert "It has fallen off the bus. It is back in service as soon as" in refused.json()["detail"]
    assert world.staff.post(f"{path}/quarantine").json()["slots"][1]["reason"].startswith("Taken")
    again = world.staff.post(f"{path}/resume").json()["slots"][1]
    assert (again["state"], again["reason"]) == ("quarantined", "It has fallen off the bus.")


def test_a_node_names_its_dirty_slots_and_of_an_older_worker_all_are(world: World) -> None:
    def states(**beat: object) -> list[str]:
        assert world.node.post("/v1/node/heartbeat", json=heartbeat(**beat)).is_success
        return [slot["state"] for slot in world.ann.get("/v1/nodes/box").json()["slots"]]

    assert states() == ["ready", "ready"]
    assert states(clean=False, dirty_slots=[1]) == ["ready", "dirty"]
    assert states(clean=False) == ["dirty", "dirty"]
    assert states() == ["ready", "ready"]


def test_a_node_tells_which_owners_it_can_keep_apart(world: World) -> None:
    node = client(world.app, enrol(world.app, world.database, "quad", cores=4, slots=4))
    told = {**INVENTORY, "cores": 4, "slots": 4}

    def after(**change: str) -> dict[str, Any]:
        beat = node.post("/v1/node/heartbeat", json=heartbeat(inventory={**told, **change}))
        assert beat.status_code == 200, beat.text
        shown: dict[str, Any] = world.ann.get("/v1/nodes/quad").json()
        return shown

    older = after()
    assert (older["sharing"], "older version" in older["no_sharing"]) == ("none", True)
    some = after(sharing="recipes", no_sharing="no memory cgroup can be made")
    assert (some["sharing"], some["no_sharing"]) == ("recipes", "no memory cgroup can be made")
    assert after(sharing="full")["no_sharing"] == ""
    assert after()["sharing"] == "none"  # the older worker is back


def test_a_reason_for_taking_a_node_out_is_shown_with_it_and_audited(world: World) -> None:
    path = "/v1/admin/nodes/box/quarantine"
    for wrong in ("", "x", "y" * 301):
        refused = world.staff.post(path, json={"reason": wrong})
        assert (refused.status_code, refused.json()["param"]) == (422, "reason")
    node = world.staff.post(path, json={"reason": "GPU 2 is too hot."}).json()
    assert node["reason"].endswith("suspected faulty. Reason: GPU 2 is too hot.")
    entry = world.staff.get("/v1/admin/audit").json()["data"][0]
    assert (entry["kind"], entry["details"]["reason"]) == ("node.quarantine", "GPU 2 is too hot.")
    assert world.staff.post("/v1/admin/nodes/box/resume").json()["state"] == "ready"


def test_a_nodes_jobs_are_named_to_their_owner_and_to_staff(world: World) -> None:
    job = world.bob.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job)
    for viewer, names in (
        (world.bob, {job: "gpt-ddp"}),
        (world.staff, {job: "gpt-ddp"}),
        (world.ann, {}),
    ):
        node = viewer.get("/v1/nodes").json()["data"][0]
        assert (node["jobs"], node["job_names"]) == ([job], names)
        assert viewer.get("/v1/nodes/box").json()["job_names"] == names


def test_a_page_of_nodes_asks_the_same_number_of_questions_however_many_there_are(
    world: World,
) -> None:
    def num_statements() -> int:
        statements: list[str] = []
        engine = world.process.database.engine

        def count(*args: Any) -> None:
            statements.append(args[2])

        event.listen(engine, "before_cursor_execute", count)
        try:
            assert world.ann.get("/v1/nodes").status_code == 200
        finally:
            event.remove(engine, "before_cursor_execute", count)
        return len(statements)

    num_statements()  # what a process keeps is kept then
    few = num_statements()
    for number in range(5):
        enrol(world.app, world.database, f"more-{number}")
    assert len(world.ann.get("/v1/nodes").json()["data"]) == 6
    assert num_statements() == few
