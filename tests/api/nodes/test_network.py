"""Hosts that programs may reach: listed by administrators, asked for by jobs, used and recorded."""

from typing import Any

import pytest

from tests.api.conftest import World
from tests.api.scripts.test_scripts import code, script_spec, submit
from tests.api.shapes import INVENTORY, exit_record, heartbeat, place

pytestmark = pytest.mark.db
__all__ = ["code"]  # a fixture

OF_CLASS = "/v1/admin/network/node-classes/cpu2"


def allow(world: World, *hosts: str, path: str = OF_CLASS) -> None:
    answer = world.admin.put(path, json={"hosts": list(hosts)})
    assert answer.status_code == 200, answer.text


def spec(code: str, *network: str, **script: Any) -> dict[str, Any]:
    return {**script_spec(code, **script), **({"network": list(network)} if network else {})}


def beat(world: World, *observed: dict[str, Any], egress: str | None = "") -> dict[str, Any]:
    """The orders for the node that a heartbeat is answered with."""
    inventory = {**INVENTORY, **({} if egress is None else {"egress": egress})}
    answer = world.node.post("/v1/node/heartbeat", json=heartbeat(*observed, inventory=inventory))
    assert answer.status_code == 200, answer.text
    orders: dict[str, Any] = answer.json()
    return orders


def test_an_administrator_lists_hosts_of_classes_and_labs(world: World) -> None:
    for who in (world.ann, world.staff):
        assert who.put(OF_CLASS, json={"hosts": ["pypi"]}).status_code == 403
    assert world.ann.get("/v1/admin/network").status_code == 403
    assert world.staff.get("/v1/admin/network").json()["lists"] == []
    assert world.admin.post("/v1/labs", json={"name": "vision"}).status_code == 201
    allow(world, "pypi", "private:registry.example:5000")
    allow(world, "huggingface", path="/v1/admin/network/labs/vision")
    found = world.staff.get("/v1/admin/network").json()
    assert found["lists"] == [
        {"node_class": "cpu2", "lab": None, "hosts": ["pypi", "private:registry.example:5000"]},
        {"node_class": None, "lab": "vision", "hosts": ["huggingface"]},
    ]
    assert found["groups"]["pypi"] == ["pypi.org", "files.pythonhosted.org"]
    allow(world, path="/v1/admin/network/labs/vision")
    assert len(world.staff.get("/v1/admin/network").json()["lists"]) == 1
    acts = world.admin.get("/v1/admin/audit").json()["data"]
    told = [(act["kind"], act["details"]) for act in acts if act["kind"].endswith(".network")]
    assert told == [
        ("lab.network", {"hosts": []}),
        ("lab.network", {"hosts": ["huggingface"]}),
        ("node_class.network", {"hosts": ["pypi", "private:registry.example:5000"]}),
    ]
    for place_of in ("node-classes", "labs"):
        path = f"/v1/admin/network/{place_of}/none"
        assert world.admin.put(path, json={"hosts": []}).status_code == 404


@pytest.mark.parametrize(
    "entry", ["10.0.0.1", "[::1]", "0x7f.1", "*.com", "pypi.org:0", "a b", "pypi.org/simple"]
)
def test_what_is_no_host_is_not_listed(world: World, entry: str) -> None:
    refused = world.admin.put(OF_CLASS, json={"hosts": ["pypi", entry]})
    assert (refused.status_code, refused.json()["errors"][0]["param"]) == (422, "hosts")
    assert entry in refused.json()["errors"][0]["message"]


def test_a_job_asks_for_hosts_of_the_list_and_gets_no_others(world: World, code: str) -> None:
    refused = submit(world, spec(code, "pypi"))
    assert (refused.status_code, refused.json()["code"]) == (422, "network_not_granted")
    assert refused.json()["param"] == "network.0"
    assert "network.0: pypi may not be reached. You may reach: none on cpu2" in refused.text
    allow(world, "pypi.org", "*.hf.co", "private:registry.example:5000")
    refused = submit(world, spec(code, "cdn.hf.co", "pypi"))
    assert refused.json()["param"] == "network.1"
    assert "pypi.org, *.hf.co, private:registry.example:5000 on cpu2" in refused.text
    wanted = ["cdn.hf.co", "registry.example:5000"]
    plan = world.ann.post("/v1/jobs/plan", json={"spec": spec(code, *wanted)}).json()
    assert plan["network"] == ["cdn.hf.co", "private:registry.example:5000"]
    assert "It may reach: cdn.hf.co, private:registry.example:5000." in plan["reason"]
    job = submit(world, spec(code, *wanted)).json()
    assert job["spec"]["network"] == wanted
    place(world.database, job["id"])
    [order] = beat(world)["attempts"]
    assert order["network"] == {
        "reach": ["cdn.hf.co", "private:registry.example:5000"],
        "granted": ["pypi.org", "*.hf.co", "private:registry.example:5000"],
    }
    allow(world, "registry.example:5000")  # the running attempt is told at once
    [order] = beat(world)["attempts"]
    assert order["network"]["reach"] == ["registry.example:5000"]
    [order] = beat(world, egress=None)["attempts"]  # an older worker could not read it
    assert "network" not in order


def test_what_no_node_of_a_class_allows_is_refused_though_it_is_granted(
    world: World, code: str
) -> None:
    allow(world, "pypi", "huggingface")
    for egress, status in (("", 201), ("pypi.org, files.pythonhosted.org", 201), ("none", 422)):
        beat(world, egress=egress)
        answer = submit(world, spec(code, "pypi"))
        assert answer.status_code == status, answer.text
    assert "You may reach: none on nodes of cpu2" in answer.json()["detail"]
    beat(world, egress="pypi.org, files.pythonhosted.org")
    answer = submit(world, spec(code, "pypi", "huggingface"))
    assert answer.json()["param"] == "network.1"
    assert "pypi.org, files.pythonhosted.org on nodes of cpu2" in answer.json()["detail"]


@pytest.mark.parametrize("entry", ["private:a.example", "1.2.3.4", "https://pypi.org", "pypi.org."])
def test_what_a_job_may_not_ask_for_is_named(world: World, code: str, entry: str) -> None:
    allow(world, "pypi")
    answer = submit(world, spec(code, entry))
    if entry == "pypi.org.":
        assert answer.status_code == 201
    else:
        assert (answer.status_code, answer.json()["errors"][0]["param"]) == (422, "network")


def test_a_labs_hosts_are_its_members(world: World, code: str) -> None:
    lab = world.admin.post("/v1/labs", json={"name": "vision"}).json()
    allow(world, "pypi", path="/v1/admin/network/labs/vision")
    assert submit(world, spec(code, "pypi")).status_code == 422
    added = world.admin.post(f"/v1/labs/{lab['id']}/members", json={"user": "ann"})
    assert added.status_code < 300, added.text
    assert submit(world, spec(code, "pypi")).status_code == 201


def test_packages_are_installed_by_the_list_though_the_job_asks_for_none(
    world: World, code: str
) -> None:
    allow(world, "pypi")
    with_packages = submit(world, spec(code, requirements="requirements.txt")).json()
    place(world.database, with_packages["id"])
    [order] = beat(world)["attempts"]
    assert order["network"] == {"reach": None, "granted": ["pypi.org", "files.pythonhosted.org"]}
    assert "network" not in with_packages["spec"]


def use(host: str, **counts: Any) -> dict[str, Any]:
    none = {"connections": 0, "refused": 0, "sent_bytes": 0, "received_bytes": 0, "why": ""}
    return {"host": host, **none, **counts}


def test_what_a_program_reached_is_on_its_job_and_in_the_audit_log(world: World, code: str) -> None:
    allow(world, "pypi")
    job = submit(world, spec(code, "pypi")).json()
    epoch = place(world.database, job["id"])
    first = [use("pypi.org:443", connections=1, received_bytes=10)]
    more = [
        use("pypi.org:443", connections=3, sent_bytes=2048, received_bytes=5 << 20),
        use("evil.example:443", refused=7, why="evil.example:443 is not among the hosts"),
    ]
    seen = {"job_id": job["id"], "epoch": epoch, "phase": "running"}
    for hosts in (first, first, more):
        beat(world, {**seen, "hosts": hosts})
    [attempt] = world.ann.get(f"/v1/jobs/{job['id']}/attempts").json()["data"]
    assert attempt["nodes"][0]["hosts"] == more
    exited = {**seen, "phase": "exited", "exit": exit_record(job["id"], epoch), "hosts": more}
    for _ in range(2):
        beat(world, exited)
    acts = world.admin.get(f"/v1/admin/audit?subject={job['id']}").json()["data"]
    told = [(act["kind"], act["details"]) for act in acts if act["kind"].startswith("job.network")]
    where = {"epoch": epoch, "node": "box"}
    assert told == [
        ("job.network_total", {**where, "hosts": more}),
        ("job.network", {**where, "reached": [], "refused": ["evil.example:443"]}),
        ("job.network", {**where, "reached": ["pypi.org:443"], "refused": []}),
    ]
    events = world.ann.get(f"/v1/jobs/{job['id']}/events").json()["data"]
    [message] = [event["message"] for event in events if event["kind"] == "network_used"]
    assert message == (
        "The program reached from box: pypi.org:443 (3 x, 2.0 KiB sent, 5.0 MiB received). "
        "Refused: evil.example:443 (7 x)."
    )
