"""Things that people share: read by those who may, changed by nobody else, one copy for all."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy import func, select
from starlette.testclient import TestClient

from api.app import api_routes
from core.base.ids import IdKind, new_id
from core.tables.files import StoredFile
from core.tables.jobs import JobInput
from core.tables.kinds import Role, SharedKind
from tests.api.agendas.test_agendas import agenda, lease
from tests.api.conftest import World, add_person, client
from tests.api.files.test_models import SHAPE, files, tar
from tests.api.files.test_tokenizers import content, upload
from tests.api.jobs.test_inputs import spec as program
from tests.api.scripts.test_scripts import packed
from tests.api.shapes import heartbeat, job_spec, place

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

Ids = Mapping[SharedKind, str]
ROOMS = {
    "datasets": SharedKind.DATASET,
    "models": SharedKind.MODEL,
    "tokenizers": SharedKind.TOKENIZER,
    "templates": SharedKind.TEMPLATE,
    "agendas": SharedKind.AGENDA,
    "studies": SharedKind.STUDY,
    "reports": SharedKind.REPORT,
}
PRIVATE = {SharedKind.DATASET, SharedKind.MODEL, SharedKind.TOKENIZER, SharedKind.TEMPLATE}
KINDS = tuple(ROOMS.values())
"""All kinds but jobs, of which there are more routes: test_shared_jobs.py."""
USES = ("/v1/templates/{template_id}/fill", "/v1/templates/{template_id}/start")
"""Routes that change nothing of the thing: whoever may read it may use it."""
NOTHING_HERE = {404}
REFUSED = {401}


@pytest.fixture
def ids(world: World) -> Ids:
    """One thing of each kind that ann owns."""
    dataset = world.ann.post("/v1/datasets?name=corpus", content=b"some text to read")
    model = world.ann.post("/v1/models?name=tiny", content=tar(files()))
    tokenizer = upload(world, "pieces", {"tokenizer.json": content(299)})
    study = world.ann.post("/v1/studies?ranks=1,2", json=job_spec())
    inside = world.ann.post(f"/v1/agendas?lease={lease(world)}", json=agenda({"name": "first"}))
    job = study.json()["jobs"][0]["job"]
    report = world.ann.post("/v1/reports", json={"jobs": [job]})
    template = world.ann.post("/v1/templates", json={"name": "lab", "spec": job_spec()})
    made = {
        SharedKind.TEMPLATE: template,
        SharedKind.DATASET: dataset,
        SharedKind.MODEL: model,
        SharedKind.TOKENIZER: tokenizer,
        SharedKind.AGENDA: inside,
        SharedKind.STUDY: study,
        SharedKind.REPORT: report,
    }
    for answer in made.values():
        assert answer.status_code == 201, answer.text
    return {
        kind: answer.json().get("id") or answer.json()["sha256"] for kind, answer in made.items()
    }


@pytest.fixture
def callers(world: World) -> Mapping[str, TestClient]:
    """Every kind of person, beside ann, who owns the things."""
    people = {
        name: client(world.app, add_person(world.database, name, Role.USER))
        for name in ("cat", "dan")
    }
    assert world.admin.post("/v1/labs", json={"name": "vision", "groups": ["course"]}).is_success
    for name in ("ann", "cat"):
        assert world.admin.post("/v1/labs/vision/members", json={"user": name}).is_success
    return {
        "one it is shared with": world.bob,
        "member of the group": people["cat"],
        "stranger": people["dan"],
        "staff": world.staff,
        "admin": world.admin,
        "node": world.node,
        "signed out": world.nobody,
    }


def routes_of_things(*methods: str) -> Iterator[tuple[str, str, SharedKind]]:
    """(method, path, kind) of every route of the API that names one thing that can be shared."""
    for route in api_routes():
        found = re.match(r"/v1/([a-z]+)/\{", route.path)
        if found and found[1] in ROOMS:
            yield from (
                (method, route.path, ROOMS[found[1]])
                for method in sorted(route.methods)
                if method in methods
            )


def status(caller: TestClient, method: str, path: str, thing: str) -> int:
    """Status of an answer; a stream is left at its first byte."""
    address = re.sub(r"\{[a-z0-9_]+\}", thing, path)
    with caller.stream(method, address, json=None if method == "GET" else {}) as answer:
        return answer.status_code


def share(world: World, kind: SharedKind, thing: str, **who: object) -> Any:
    return world.ann.post("/v1/shares", json={"kind": kind, "thing": thing, **who})


def readers(callers: Mapping[str, TestClient], ids: Ids) -> dict[str, set[str]]:
    """Map `METHOD path` -> the callers whom it answers, of all routes that read one thing."""
    found: dict[str, set[str]] = {}
    for method, path, kind in routes_of_things("GET"):
        answered = found.setdefault(f"{method} {path}", set())
        for name, caller in callers.items():
            code = status(caller, method, path, ids[kind])
            assert code in (200, 401 if name in ("node", "signed out") else 404), (name, path, code)
            if code == 200:
                answered.add(name)
    return found


def test_every_route_reads_for_those_who_may_and_writes_for_nobody_else(
    world: World, ids: Ids, callers: Mapping[str, TestClient]
) -> None:
    reads = [(path, kind) for _, path, kind in routes_of_things("GET")]
    writes = list(routes_of_things("POST", "PUT", "PATCH", "DELETE"))
    assert len(reads) >= 9  # the rooms' own, previews, rows, streams
    assert {kind for _, kind in reads} == set(KINDS)
    always = {kind: set() if kind in PRIVATE else {"staff", "admin"} for kind in KINDS}

    def expect(more: set[str]) -> None:
        told = readers(callers, ids)
        for path, kind in reads:
            assert told[f"GET {path}"] == always[kind] | more, path

    expect(set())
    for path in USES:
        assert status(callers["stranger"], "POST", path, ids[SharedKind.TEMPLATE]) == 404
    shares = []
    for who, allowed in (
        ({"person": "bob"}, {"one it is shared with"}),
        ({"group": "vision"}, {"member of the group"}),
        ({"group": "course"}, {"member of the group"}),
        ({"everybody": True}, set(callers) - {"node", "signed out"}),
    ):
        made = [share(world, kind, ids[kind], **who) for kind in KINDS]
        assert {answer.status_code for answer in made} == {201}, made[0].text
        expect(allowed)
        if "everybody" not in who:
            for answer in made:
                assert world.ann.delete(f"/v1/shares/{answer.json()['id']}").status_code == 204
            expect(set())
        else:
            shares = [answer.json()["id"] for answer in made]

    # All may read everything now. Nobody else writes, ends a share or shares on.
    acts = {"POST /v1/agendas/{agenda_id}/cancel", "POST /v1/studies/{study_id}/cancel"}
    for name, caller in callers.items():
        for method, path, kind in writes:
            if name in ("staff", "admin") and f"{method} {path}" in acts:
                continue  # staff cancel what runs
            if path in USES and name not in ("node", "signed out"):
                assert status(caller, method, path, ids[kind]) in (200, 201), (name, path)
                continue
            code = status(caller, method, path, ids[kind])
            assert code in REFUSED | NOTHING_HERE, (name, method, path, code)
        for kind in KINDS:
            body = {"kind": kind, "thing": ids[kind], "everybody": True}
            assert caller.post("/v1/shares", json=body).status_code in REFUSED | NOTHING_HERE
        for one in shares:
            assert caller.delete(f"/v1/shares/{one}").status_code in REFUSED | NOTHING_HERE
    assert len(world.ann.get("/v1/shares").json()["data"]) == len(KINDS)


def test_lists_say_whose_and_jobs_name_owner_and_name(world: World, ids: Ids) -> None:
    plain = {"data": {"dataset": "ann/corpus"}}
    assert world.bob.post("/v1/jobs", json=job_spec(**plain)).json()["code"] == "unknown_dataset"
    for kind in KINDS:
        assert share(world, kind, ids[kind], person="bob").status_code == 201
    listed = {room: world.bob.get(f"/v1/{room}").json()["data"] for room in ROOMS}
    assert [one["owner"] for one in listed["datasets"]] == [None, None, "ann"]
    assert (listed["models"][0]["owner"], listed["tokenizers"][0]["owner"]) == ("ann", "ann")
    for room in ("agendas", "studies", "reports"):
        assert [one["user"] for one in listed[room]] == ["ann"]
    assert listed["models"][0]["model"]["checkpoint"] == "ann/tiny"  # as bob's job must name it
    assert world.ann.get("/v1/models/tiny").json()["model"]["checkpoint"] == "tiny"
    assert world.bob.get("/v1/models/tiny").status_code == 404  # he has none of that name
    assert world.staff.get("/v1/reports").json()["data"] == []

    text = job_spec(data={"dataset": "ann/corpus", "sequence_length": 4})
    assert world.bob.post("/v1/jobs", json=text).status_code == 201
    llama = job_spec(
        model={**SHAPE, "checkpoint": "ann/tiny"},
        data={"tokenizer": "bytes", "vocabulary_size": None},
    )
    del llama["data"]["vocabulary_size"]
    answer = world.bob.post("/v1/jobs", json=llama)
    assert answer.status_code == 201, answer.text
    assert world.bob.get(f"/v1/models/{ids[SharedKind.MODEL]}").json()["used_by"] == [
        answer.json()["id"]
    ]
    assert world.ann.get("/v1/models/tiny").json()["used_by"] == []  # what others do is theirs
    pieces = job_spec(data={"tokenizer": "huggingface", "tokenizer_name": "ann/pieces"})
    answer = world.bob.post("/v1/jobs", json=pieces)
    assert answer.json()["spec"]["data"]["vocabulary_size"] == 300, answer.text
    rows = f"/v1/datasets/{ids[SharedKind.DATASET]}/rows"
    shown = world.bob.get(rows, params={"tokenizer": "bytes"}).json()
    assert shown["rows"][0]["pieces"][0]["text"] == "some text to read"


def test_there_is_one_copy_and_a_job_keeps_it_when_sharing_ends(world: World, ids: Ids) -> None:
    def stored() -> tuple[int, int]:
        with world.database.read() as session:
            row = session.execute(select(func.count(), func.sum(StoredFile.size))).one()
            return row[0], row[1]

    code = world.bob.post(
        "/v1/code",
        content=packed({"train.py": "print()"}),
        headers={"Content-Type": "application/zip"},
    ).json()["sha256"]
    before = stored()
    made = share(world, SharedKind.MODEL, "tiny", person="bob").json()
    wanted = program(code, {"model": "ann/tiny", "name": "lab/tiny"})
    job = world.bob.post("/v1/jobs", json=wanted)
    assert job.status_code == 201, job.text
    own = world.ann.post(
        "/v1/code",
        content=packed({"train.py": "print()"}),
        headers={"Content-Type": "application/zip"},
    )
    assert own.status_code == 201
    hers = world.ann.post("/v1/jobs", json=program(code, {"model": "tiny"}))
    assert job.json()["inputs"][0]["sha256"] == hers.json()["inputs"][0]["sha256"]
    assert stored() == before

    assert world.ann.delete(f"/v1/shares/{made['id']}").status_code == 204
    refused = world.bob.post("/v1/jobs", json=wanted)
    assert (refused.status_code, refused.json()["code"]) == (422, "unknown_model")
    again = world.bob.post(f"/v1/jobs/{job.json()['id']}/clone")
    assert again.json()["code"] == "unknown_model"
    assert world.ann.delete("/v1/models/tiny").status_code == 204
    place(world.database, job.json()["id"])
    (order,) = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()["attempts"]
    for file in order["inputs"][0]["files"]:
        assert world.node.get(f"/v1/node/files/{file['sha256']}").status_code == 200
    with world.database.read() as session:
        held = session.scalars(select(JobInput).where(JobInput.job_id == job.json()["id"])).one()
        assert held.source == "ann/tiny"


def test_the_next_version_of_a_model_is_shared_with_it(world: World, ids: Ids) -> None:
    share(world, SharedKind.MODEL, "tiny", person="bob")
    newer = world.ann.post("/v1/models?name=tiny", content=tar(files(rms_norm_eps=1e-6))).json()
    found = world.bob.get("/v1/models").json()["data"]
    assert [(one["name"], one["version"]) for one in found] == [("tiny", 2), ("tiny@1", 1)]
    assert found[0]["id"] == newer["id"]
    world.ann.delete("/v1/models/tiny")
    assert [one["name"] for one in world.bob.get("/v1/models").json()["data"]] == ["tiny@1"]
    assert [one["name"] for one in world.ann.get("/v1/shares").json()["data"]] == ["tiny@1"]


def test_wrong_shares_are_refused_with_their_field(world: World, ids: Ids, callers: object) -> None:
    for who, code, param in (
        ({"person": "nobody"}, 404, "person"),
        ({"group": "chemistry"}, 404, "group"),
        ({}, 422, ""),
        ({"person": "bob", "everybody": True}, 422, ""),
    ):
        refused = share(world, SharedKind.MODEL, "tiny", **who)
        assert (refused.status_code, refused.json().get("param")) == (code, param), refused.text
    assert share(world, SharedKind.MODEL, "other", person="bob").json()["param"] == "thing"
    assert "course, vision" in share(world, SharedKind.MODEL, "tiny", group="x").json()["detail"]
    assert (
        world.ann.post(
            "/v1/shares", json={"kind": "secret", "thing": "x", "person": "bob"}
        ).status_code
        == 422
    )
    first = share(world, SharedKind.MODEL, "tiny", group="course").json()
    assert share(world, SharedKind.MODEL, "tiny", group="course").json() == first
    assert (first["audience"], first["who"], first["name"]) == ("group", "course", "tiny")
    assert world.ann.get("/v1/shares", params={"kind": "dataset"}).json()["data"] == []
    only = {"kind": "model", "thing": ids[SharedKind.MODEL]}
    assert world.ann.get("/v1/shares", params=only).json()["data"] == [first]
    assert world.ann.delete(f"/v1/shares/{new_id(IdKind.SHARE)}").status_code == 404
    audit = world.staff.get("/v1/admin/audit").json()["data"][0]
    assert (audit["kind"], audit["subject"]) == ("share.add", ids[SharedKind.MODEL])
