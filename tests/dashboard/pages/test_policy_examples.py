"""The page of policies offers the shipped ones while there is none."""

from starlette.testclient import TestClient

from dashboard.examples import policy_examples
from tests.dashboard.fake_api import FakeApi


def test_an_installation_without_policies_starts_from_a_shipped_one(
    api: FakeApi, page: TestClient
) -> None:
    api.put("/v1/policies", [])
    names = list(policy_examples())
    assert set(names) == {"course", "course-gpus"}
    text = page.get("/admin/policies").text
    for name in names:
        assert f'href="/admin/policies?example={name}"' in text
    assert (
        policy_examples()["course"].splitlines()[0]
        in page.get("/admin/policies?example=course").text
    )
    assert page.get("/admin/policies?example=../../etc").status_code == 200
