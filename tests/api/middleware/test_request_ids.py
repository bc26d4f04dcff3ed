"""One id for an answer and for what the log says about it."""

import pytest
import structlog

from tests.api.conftest import World

# No database has a part in it.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_every_answer_has_an_id_and_takes_over_a_proxys(world: World) -> None:
    first, second = (world.nobody.get("/healthz").headers["X-Request-Id"] for _ in range(2))
    assert first != second
    given = {"X-Request-Id": "from-the-proxy-1"}
    assert world.ann.get("/v1/me", headers=given).headers["X-Request-Id"] == "from-the-proxy-1"
    forged = {"X-Request-Id": 'x" forged="1'}
    assert "forged" not in world.ann.get("/v1/me", headers=forged).headers["X-Request-Id"]


def test_lines_of_the_log_name_request_and_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, object]] = []

    def look(*_: object) -> None:
        seen.append(structlog.contextvars.get_contextvars())
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("api.jobs.routes.show_job", look)
    job = "job_" + "0" * 26
    answer = world.ann.get(f"/v1/jobs/{job}")
    assert answer.status_code == 500
    assert seen == [{"request": answer.headers["X-Request-Id"], "job": job}]
