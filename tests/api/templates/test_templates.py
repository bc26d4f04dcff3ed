"""Templates over the API: kept, shared, filled, started; a locked field is refused by name."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from core.base.clock import utc_now
from core.tables.templates import TemplateStart
from tests.api.agendas.test_agendas import lease
from tests.api.conftest import World
from tests.api.files.test_retention import retention
from tests.api.scripts.test_scripts import packed
from tests.api.shapes import job_spec

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
RATE = {"field": "training.learning_rate", "minimum": 1e-5, "maximum": 0.1, "label": "Rate"}
ZIP = {"Content-Type": "application/zip"}


def keep(world: World, **changes: Any) -> Any:
    body = {"name": "lab-1", "spec": job_spec(), "open": [RATE], **changes}
    return world.ann.post("/v1/templates", json=body)


def shared(world: World, **changes: Any) -> str:
    made = keep(world, **changes)
    assert made.status_code == 201, made.text
    body = {"kind": "template", "thing": made.json()["id"], "person": "bob"}
    assert world.ann.post("/v1/shares", json=body).status_code == 201
    return str(made.json()["id"])


def test_a_locked_field_is_refused_with_its_name(world: World) -> None:
    template = shared(world)
    (seen,) = world.bob.get("/v1/templates").json()["data"]
    assert (seen["owner"], seen["kind"], seen["version"]) == ("ann", "job", 1)
    path = f"/v1/templates/{template}/start"
    for body, param in (
        ({"values": {"training.steps": 1}}, "training.steps"),
        ({"values": {"training.learning_rate": 9}}, "training.learning_rate"),
        ({"spec": job_spec(training={"seed": 2})}, "training.seed"),
        ({"spec": job_spec(name="other", training={"learning_rate": 0.01})}, "name"),
    ):
        refused = world.bob.post(path, json=body)
        assert (refused.status_code, refused.json()["param"]) == (422, param), refused.text
        assert world.bob.post(path.replace("start", "fill"), json=body).status_code == 422
    assert world.bob.get("/v1/jobs").json()["data"] == []


def test_a_start_is_a_job_of_the_one_who_starts_it(world: World) -> None:
    template = shared(world)
    path = f"/v1/templates/{template}"
    filled = world.bob.post(f"{path}/fill", json={"values": {"training.learning_rate": 0.05}})
    assert filled.json()["spec"]["training"]["learning_rate"] == 0.05
    key = {"Idempotency-Key": "once"}
    body = {"values": {"training.learning_rate": 0.05}}
    made = world.bob.post(f"{path}/start", json=body, headers=key)
    assert made.status_code == 201, made.text
    assert world.bob.post(f"{path}/start", json=body, headers=key).json() == made.json()
    job = world.bob.get(f"/v1/jobs/{made.json()['job']}").json()
    assert (job["user"], job["spec"]["training"]["learning_rate"]) == ("bob", 0.05)
    whole = world.bob.post(
        f"{path}/start", json={"spec": job_spec(training={"learning_rate": 0.02})}
    )
    assert whole.status_code == 201, whole.text
    with world.database.read() as session:
        rows = session.scalars(select(TemplateStart)).all()
        assert {(row.template_id, row.version) for row in rows} == {(template, 1)}
        assert len(rows) == 2


def test_an_agenda_needs_a_lease_and_a_script_brings_its_code(world: World) -> None:
    agenda = {
        "name": "two",
        "common": {name: part for name, part in job_spec().items() if name != "name"},
        "jobs": [{"name": "a", "resources": {"wall_time": "10min"}}, {"name": "b"}],
    }
    path = f"/v1/templates/{shared(world, name='lab-2', spec=agenda, open=[])}/start"
    missing = world.bob.post(path, json={})
    assert (missing.status_code, missing.json()["param"]) == (422, "lease")
    made = world.bob.post(path, json={"lease": lease(world, user="bob")})
    assert made.status_code == 201, made.text
    shown = world.bob.get(f"/v1/agendas/{made.json()['agenda']}").json()
    assert [job["name"] for job in shown["jobs"]] == ["a", "b"]

    code = world.ann.post("/v1/code", content=packed({"train.py": "1"}), headers=ZIP).json()
    script = {
        "name": "mine",
        "script": {"entry": "train.py"},
        "resources": {"ranks_per_node": 1, "wall_time": "5min"},
    }
    without = keep(world, name="lab-3", spec=script, open=[])
    assert without.status_code == 422
    body = {"name": "lab-3", "spec": script}
    kept = world.ann.post("/v1/templates", json=body, params={"code": code["sha256"]}).json()
    assert kept["kind"] == "script"
    grant = {"kind": "template", "thing": "lab-3", "everybody": True}
    assert world.ann.post("/v1/shares", json=grant).status_code == 201
    started = world.bob.post(f"/v1/templates/{kept['id']}/start", json={})
    assert started.status_code == 201, started.text
    assert world.bob.get(f"/v1/code/{code['sha256']}").json()["paths"] == ["train.py"]


def test_the_same_name_is_the_next_version_and_a_wrong_spec_is_refused(world: World) -> None:
    first = keep(world).json()
    assert keep(world).json() == first  # the same content is the same version
    second = keep(world, description="Better.").json()
    assert (second["id"], second["version"]) == (first["id"], 2)
    for changes, param in (
        ({"spec": job_spec(training={"steps": 0})}, "spec.training.steps"),
        ({"spec": {"name": "x", "jobs": []}, "open": []}, "spec.jobs"),
        ({"open": [{"field": "a b"}]}, "open.0.field"),
    ):
        refused = keep(world, **changes)
        assert (refused.status_code, refused.json()["param"]) == (422, param), refused.text
    own = keep(world, name="own", spec=job_spec(data={"dataset": "corpus"})).json()
    assert own["spec"]["data"]["dataset"] == "ann/corpus"
    assert world.ann.delete("/v1/templates/own").status_code == 204
    assert world.ann.get("/v1/templates/own").status_code == 404
    assert keep(world, name="own").json()["version"] == 1


def test_the_code_of_a_template_stays_as_long_as_the_template(world: World) -> None:
    code = world.ann.post("/v1/code", content=packed({"train.py": "1"}), headers=ZIP).json()
    other = world.ann.post("/v1/code", content=packed({"train.py": "2"}), headers=ZIP).json()
    script = {
        "name": "mine",
        "script": {"entry": "train.py", "code": code["sha256"]},
        "resources": {"ranks_per_node": 1, "wall_time": "5min"},
    }
    assert keep(world, name="lab-3", spec=script, open=[]).status_code == 201
    path = f"/v1/code/{code['sha256']}"
    refused = world.ann.delete(path)
    assert (refused.status_code, refused.json()["code"]) == (409, "code_in_use")
    assert retention(world).run(utc_now() + timedelta(days=900))
    assert world.ann.get(path).status_code == 200
    assert world.ann.get(f"/v1/code/{other['sha256']}").status_code == 404
    assert world.ann.delete("/v1/templates/lab-3").status_code == 204
    assert world.ann.delete(path).status_code == 204
