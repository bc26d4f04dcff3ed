"""Checkpoints and artifacts, downloaded."""

import hashlib
import io
import tarfile

import pytest

from tests.api.conftest import World
from tests.api.shapes import job_spec, place

# The same on every database: once is enough.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def put(world: World, path: str, content: bytes) -> dict[str, object]:
    sha256 = hashlib.sha256(content).hexdigest()
    assert world.node.put(f"/v1/node/files/{sha256}", content=content).status_code in (200, 201)
    return {"path": path, "sha256": sha256, "size": len(content)}


def test_a_checkpoint_comes_as_a_tar_or_file_by_file(world: World) -> None:
    job = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job)
    files = {"manifest.json": b"{}", "shards/rank0.distcp": bytes(range(256)) * 9, "empty": b""}
    refs = [put(world, path, content) for path, content in files.items()]
    report = {"job_id": job, "epoch": 1, "step": 200, "files": refs}
    assert world.node.post("/v1/node/checkpoints", json=report).status_code == 204
    (checkpoint,) = world.ann.get(f"/v1/jobs/{job}/checkpoints").json()["data"]
    address = f"/v1/jobs/{job}/checkpoints/{checkpoint['id']}"

    answer = world.ann.get(address)
    assert answer.headers["content-disposition"].startswith("attachment")
    assert int(answer.headers["content-length"]) == len(answer.content)
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        members = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        read = {name: file.read() for name, file in members.items() if file is not None}
    assert read == {f"step-000200/{path}": content for path, content in files.items()}

    one = world.ann.get(address, params={"path": "shards/rank0.distcp"})
    assert one.content == files["shards/rank0.distcp"]
    assert one.headers["x-content-type-options"] == "nosniff"
    assert world.ann.get(address, params={"path": "../manifest.json"}).status_code == 404
    assert world.bob.get(address).status_code == 404
    other = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    assert world.ann.get(f"/v1/jobs/{other}/checkpoints/{checkpoint['id']}").status_code == 404


def test_artifacts_come_as_attachments_whatever_their_name(world: World) -> None:
    job = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job)
    report = {"job_id": job, "epoch": 1, "file": put(world, "page.html", b"<script>alert(1)")}
    for _ in range(2):
        assert world.node.post("/v1/node/artifacts", json=report).status_code == 204
    (artifact,) = world.ann.get(f"/v1/jobs/{job}/artifacts").json()["data"]
    assert (artifact["path"], artifact["size"]) == ("page.html", 16)
    answer = world.ann.get(f"/v1/jobs/{job}/artifacts/{artifact['id']}")
    assert answer.content == b"<script>alert(1)"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert world.bob.get(f"/v1/jobs/{job}/artifacts/{artifact['id']}").status_code == 404
