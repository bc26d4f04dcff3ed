"""Limits in bytes hold on every way in: each is tried just below and just above."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import update

from core.process.settings import ApiSettings
from core.tables.files import Dataset
from tests.api.conftest import World, running_world
from tests.api.files.test_models import files, tar
from tests.api.shapes import job_spec
from tests.worker.script_orders import packed

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

LIMIT = 1 << 20


@pytest.fixture
def limited(settings: ApiSettings) -> Iterator[World]:
    with running_world(
        settings.model_copy(update={"user_storage_gib": LIMIT / (1 << 30)})
    ) as world:
        yield world


def key() -> dict[str, str]:
    return {"Idempotency-Key": uuid.uuid4().hex}


def dataset(world: World, name: str, size: int, **headers: str) -> Any:
    text = b"a line of text\n" * (size // 15 + 1)
    return world.ann.post(
        "/v1/datasets", params={"name": name}, content=text[:size], headers=headers
    )


def script(code: str) -> dict[str, Any]:
    return {
        "name": "mine",
        "script": {"entry": "train.py", "code": code},
        "resources": {"ranks_per_node": 1, "wall_time": "20min"},
    }


def used(world: World) -> int:
    return int(world.ann.get("/v1/me/storage").json()["used"])


def refused(answer: Any) -> bool:
    return (answer.status_code, answer.json().get("code")) == (409, "storage_full")


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "one"}])
def test_a_dataset_is_taken_up_to_the_limit_and_no_further(
    limited: World, headers: dict[str, str]
) -> None:
    assert refused(dataset(limited, "over", LIMIT + 1, **headers))
    assert used(limited) == 0
    assert dataset(limited, "full", LIMIT, **headers).status_code == 201
    assert dataset(limited, "full", LIMIT, **{"Idempotency-Key": "one"}).status_code == (
        201 if headers else 409
    )
    answer = dataset(limited, "more", 1, **{"Idempotency-Key": "two"})
    assert refused(answer)
    assert "ann holds 1.0 MiB of 1.0 MiB, too much for 1 bytes more" in str(answer.json()["detail"])


def test_a_model_with_a_key_is_taken_up_to_the_limit_and_no_further(
    limited: World,
) -> None:
    body = tar(files())
    size = limited.bob.post("/v1/models", params={"name": "m"}, content=body).json()["size"]
    assert dataset(limited, "most", LIMIT - size + 1).status_code == 201

    def upload() -> Any:
        return limited.ann.post("/v1/models", params={"name": "mine"}, content=body, headers=key())

    assert refused(upload())
    assert limited.ann.delete("/v1/datasets/most").status_code == 204
    assert dataset(limited, "less", LIMIT - size).status_code == 201
    assert upload().status_code == 201


def test_code_counts_and_is_taken_up_to_the_limit_and_no_further(limited: World) -> None:
    body = packed({"train.py": "print()"})
    assert dataset(limited, "most", LIMIT - len(body) + 1).status_code == 201
    assert refused(limited.ann.post("/v1/code", content=body))
    assert limited.ann.delete("/v1/datasets/most").status_code == 204
    assert dataset(limited, "less", LIMIT - len(body)).status_code == 201
    assert limited.ann.post("/v1/code", content=body).status_code == 201
    assert limited.ann.post("/v1/code", content=body).status_code == 201  # it is there already
    assert limited.ann.get("/v1/me/storage").json()["by_kind"]["code"] == len(body)


def test_jobs_and_studies_are_taken_up_to_the_limit_and_not_over_it(limited: World) -> None:
    def submit() -> list[Any]:
        study = {"ranks": "1,2"}
        return [
            limited.ann.post("/v1/jobs", json=job_spec(), headers=key()),
            limited.ann.post("/v1/studies", params=study, json=job_spec(), headers=key()),
        ]

    assert dataset(limited, "full", LIMIT).status_code == 201
    assert [answer.status_code for answer in submit()] == [201, 201]
    with limited.database.write() as session:  # as what a job leaves behind would make it
        session.execute(update(Dataset).values(size=LIMIT + 1))
    assert all(refused(answer) for answer in submit())


def test_code_is_listed_and_deleted_once_no_job_needs_it(limited: World) -> None:
    body = packed({"train.py": "print()"})
    sha256 = limited.ann.post("/v1/code", content=body).json()["sha256"]
    job = limited.ann.post("/v1/jobs", json=script(sha256)).json()["id"]
    (line,) = limited.ann.get("/v1/code").json()["data"]
    assert (line["sha256"], line["files"], line["jobs"]) == (sha256, 1, [job])
    assert limited.bob.get("/v1/code").json()["data"] == []
    assert limited.bob.delete(f"/v1/code/{sha256}").status_code == 404
    answer = limited.ann.delete(f"/v1/code/{sha256}")
    assert (answer.status_code, answer.json()["code"]) == (409, "code_in_use")
    assert job in answer.json()["detail"]
    limited.ann.post(f"/v1/jobs/{job}/cancel")
    assert limited.ann.delete(f"/v1/code/{sha256}").status_code == 204
    assert used(limited) == 0
    gone = limited.ann.get(f"/v1/jobs/{job}/code")
    assert (gone.status_code, gone.json()["detail"]) == (404, "The code of mine was deleted.")
    again = limited.ann.post(f"/v1/jobs/{job}/clone")
    assert (again.status_code, again.json()["code"]) == (422, "unknown_code")
