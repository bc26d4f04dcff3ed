"""Tries again where that is safe, with one key; says plainly what is wrong."""

import socket
from pathlib import Path

import pytest

import trainyard
from tests.client import documents as d
from tests.client.fake_server import Answer, FakeServer, as_json, listed, refused
from trainyard import (
    BadInput,
    Conflict,
    ConnectionFailed,
    Forbidden,
    Invalid,
    NotFound,
    NotSignedIn,
    Patience,
    ServerFailed,
    TooMany,
    Trainyard,
    UnexpectedAnswer,
)
from trainyard.transport.connection import Connection

YAML = "name: gpt-ddp\n# a comment that must arrive\nresources: {wall_time: 20min}\n"


def test_the_public_names_are_the_ones_promised() -> None:
    assert set(trainyard.__all__) == {name for name in vars(trainyard) if name[0].isupper()}


def test_a_job_is_submitted_as_the_text_it_is(server: FakeServer, client: Trainyard) -> None:
    server.answer("POST /v1/jobs", as_json(d.job(), 201))
    assert client.jobs.create(YAML).name == "gpt-ddp"
    [asked] = server.of("POST /v1/jobs")
    assert asked.body.decode() == YAML
    assert asked.headers["content-type"] == "application/yaml"
    assert asked.headers["authorization"] == "Bearer ty_secret"
    assert asked.headers["user-agent"].startswith("trainyard/")


def test_a_job_can_be_a_file_or_a_mapping(
    server: FakeServer, client: Trainyard, tmp_path: Path
) -> None:
    server.answer("POST /v1/jobs", as_json(d.job(), 201))
    (tmp_path / "job.yaml").write_text(YAML)
    client.jobs.create(tmp_path / "job.yaml")
    client.jobs.create(d.SPEC)
    of_file, of_mapping = server.of("POST /v1/jobs")
    assert of_file.body.decode() == YAML
    assert of_mapping.headers["content-type"] == "application/json"


@pytest.mark.parametrize("status", [502, 503, 504])
def test_all_tries_of_one_create_share_a_key(
    server: FakeServer, client: Trainyard, waits: list[float], status: int
) -> None:
    away = refused(status, "unavailable", "Away.")
    server.answer("POST /v1/jobs", away, Answer(cut=True), as_json(d.job(), 201))
    client.jobs.create(YAML)
    keys = [asked.headers["idempotency-key"] for asked in server.of("POST /v1/jobs")]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert len(waits) == 2


def test_two_creates_have_two_keys(server: FakeServer, client: Trainyard) -> None:
    server.answer("POST /v1/jobs", as_json(d.job(), 201))
    client.jobs.create(YAML)
    client.jobs.create(YAML)
    first, second = server.of("POST /v1/jobs")
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]


def test_an_answer_cut_in_the_middle_is_asked_for_again(
    server: FakeServer, client: Trainyard
) -> None:
    half = Answer(200, b'{"id": ', cut=True)
    server.answer(f"GET /v1/jobs/{d.JOB_ID}", half, as_json(d.job()))
    assert client.jobs.get(d.JOB_ID).id == d.JOB_ID


def test_waits_double_and_are_shortened_by_at_most_half(
    server: FakeServer, client: Trainyard, waits: list[float]
) -> None:
    server.answer("GET /v1/me", refused(503, "unavailable", "Away."))
    with pytest.raises(ServerFailed):
        client.me()
    assert len(waits) == 4
    for wait_s, longest_s in zip(waits, [0.5, 1, 2, 4], strict=True):
        assert longest_s / 2 <= wait_s <= longest_s


def test_retry_after_is_obeyed(server: FakeServer, client: Trainyard, waits: list[float]) -> None:
    busy = refused(429, "too_many", "Slow down.", retry_after="7")
    server.answer("GET /v1/me", busy, as_json(d.ME))
    client.me()
    assert waits == [7.0]


def test_a_long_retry_after_is_the_callers_to_decide(
    server: FakeServer, client: Trainyard, waits: list[float]
) -> None:
    server.answer("GET /v1/me", refused(429, "too_many", "Wait an hour.", retry_after="3600"))
    with pytest.raises(TooMany) as caught:
        client.me()
    assert caught.value.retry_after_s == 3600
    assert waits == []


def test_a_limit_without_retry_after_is_not_tried_again(
    server: FakeServer, client: Trainyard, waits: list[float]
) -> None:
    server.answer("GET /v1/me", refused(429, "too_many", "200 jobs wait already."))
    with pytest.raises(TooMany):
        client.me()
    assert waits == []


def test_a_retry_after_date_is_understood(
    server: FakeServer, client: Trainyard, waits: list[float]
) -> None:
    past = "Wed, 21 Oct 2015 07:28:00 GMT"
    busy = refused(503, "unavailable", "Away.", retry_after=past)
    server.answer("GET /v1/me", busy, as_json(d.ME))
    client.me()
    assert waits == [0.0]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Invalid),
        (401, NotSignedIn),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (413, Invalid),
        (422, Invalid),
        (500, ServerFailed),
    ],
)
def test_a_problem_becomes_its_error_at_once(
    server: FakeServer, client: Trainyard, waits: list[float], status: int, kind: type[Exception]
) -> None:
    server.answer("GET /v1/me", refused(status, "some_code", "A sentence.", param="spec.name"))
    with pytest.raises(kind, match=r"A sentence\.") as caught:
        client.me()
    assert isinstance(caught.value, trainyard.ApiError)
    assert (caught.value.status, caught.value.code) == (status, "some_code")
    assert caught.value.param == "spec.name"
    assert waits == []


def test_every_reason_is_in_the_text_once(server: FakeServer, client: Trainyard) -> None:
    first = "model.heads: 160 is not divisible by 7."
    errors = [
        {"param": "model.heads", "code": "heads", "message": first},
        {"param": "training.steps", "code": "low", "message": "at least 1, not 0."},
    ]
    problem = refused(422, "invalid", f"{first} (1 more)", param="model.heads", errors=errors)
    server.answer("POST /v1/jobs", problem)
    with pytest.raises(Invalid) as caught:
        client.jobs.create(YAML)
    assert str(caught.value) == f"{first} (1 more)\n  training.steps: at least 1, not 0."
    assert [item.param for item in caught.value.errors] == ["model.heads", "training.steps"]


def test_not_signed_in_says_how_to_sign_in(server: FakeServer, client: Trainyard) -> None:
    server.answer("GET /v1/me", refused(401, "unauthenticated", "This token has ended."))
    with pytest.raises(NotSignedIn, match=r"trainyard login.*TRAINYARD_TOKEN"):
        client.me()


def test_nobody_there_says_what_to_do() -> None:
    with socket.socket() as taken:  # bound, not listening: refused at once
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        waits: list[float] = []
        with (
            Trainyard(url, "ty_x", sleep=waits.append) as client,
            pytest.raises(ConnectionFailed, match=r"(?s)Can't reach.*tried 5 times.*trainyard up"),
        ):
            client.me()
        assert len(waits) == 4


def test_patience_can_be_none(server: FakeServer) -> None:
    server.answer("GET /v1/me", refused(503, "unavailable", "Away."))
    with (
        Trainyard(server.url, "t", patience=Patience(retries=0)) as client,
        pytest.raises(ServerFailed),
    ):
        client.me()
    assert len(server.asked) == 1


def test_another_web_server_is_recognised(server: FakeServer, client: Trainyard) -> None:
    page = b"<html>Welcome to nginx</html>"
    server.answer("GET /v1/me", Answer(404, page, "text/html"))
    with pytest.raises(UnexpectedAnswer, match=r"Welcome to nginx.*Is the address right"):
        client.me()
    server.answer("GET /v1/me", Answer(200, page, "text/html"))
    with pytest.raises(UnexpectedAnswer, match="without JSON"):
        client.me()


def test_a_proxys_502_is_the_servers_fault(server: FakeServer, client: Trainyard) -> None:
    server.answer("GET /v1/me", Answer(502, b"<h1>Bad gateway</h1>", "text/html"))
    with pytest.raises(ServerFailed, match="Bad gateway"):
        client.me()


def test_a_redirect_is_not_followed_with_the_token(server: FakeServer, client: Trainyard) -> None:
    elsewhere = {"Location": "https://elsewhere.example/v1/me"}
    server.answer("GET /v1/me", Answer(301, b"", headers=elsewhere))
    with pytest.raises(UnexpectedAnswer, match=r"redirects to https://elsewhere\.example"):
        client.me()


def test_a_delete_whose_answer_was_lost_has_worked(server: FakeServer, client: Trainyard) -> None:
    gone = refused(404, "not_found", "You have no such lease.")
    server.answer("DELETE /v1/leases/lease_1", Answer(cut=True), gone)
    client.leases.cancel("lease_1")
    server.answer("DELETE /v1/leases/lease_2", gone)
    with pytest.raises(NotFound):
        client.leases.cancel("lease_2")


def test_a_sign_in_is_not_sent_twice(server: FakeServer, client: Trainyard) -> None:
    server.answer("POST /v1/sessions", Answer(cut=True))
    with pytest.raises(ConnectionFailed):
        client.connection.post("/v1/sessions", {"name": "a", "password": "b"}, keyed=False)
    [asked] = server.of("POST /v1/sessions")
    assert "idempotency-key" not in asked.headers


@pytest.mark.parametrize("bad", ["", " ", ".", "..", "\ud800"])
def test_an_id_that_is_none_never_leaves(client: Trainyard, server: FakeServer, bad: str) -> None:
    with pytest.raises(BadInput, match="not a valid id"):
        client.jobs.get(bad)
    assert server.asked == []


def test_an_id_stays_one_part_of_the_path(client: Trainyard, server: FakeServer) -> None:
    with pytest.raises(NotFound):
        client.jobs.get("../users?x=1#y")
    assert server.asked[0].path == "/v1/jobs/..%2Fusers%3Fx%3D1%23y"


@pytest.mark.parametrize("spec", [{"lr": float("nan")}, {"lr": object()}, {"name": b"bytes"}])
def test_what_json_cannot_say_is_refused_here(client: Trainyard, spec: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="can't be sent as JSON"):
        client.jobs.create(spec)


def test_a_token_with_a_line_end_is_refused_here(server: FakeServer) -> None:
    with pytest.raises(BadInput, match="copy it again"):
        Trainyard(server.url, "ty_a\nX-Evil: 1")


def test_the_environments_proxy_does_not_catch_the_loopback(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server.answer("GET /v1/me", as_json(d.ME))
    with Trainyard(server.url, "t", patience=Patience(retries=0)) as client:
        assert client.me().user.name == "ada"


def test_pages_are_fetched_when_they_are_needed(server: FakeServer, client: Trainyard) -> None:
    first = [d.job(id=f"job_{i}") for i in range(2)]
    server.answer("GET /v1/jobs", listed(first, has_more=True), listed([d.job(id="job_2")]))
    jobs = client.jobs.list(state="queued")
    assert server.asked == []
    assert next(jobs).id == "job_0"
    assert len(server.asked) == 1
    assert [job.id for job in jobs] == ["job_1", "job_2"]
    one, two = server.asked
    assert one.query == {"limit": ["100"], "state": ["queued"]}
    assert two.query == {"limit": ["100"], "state": ["queued"], "after": ["job_1"]}


def test_a_limit_asks_for_no_more_than_it_needs(server: FakeServer, client: Trainyard) -> None:
    server.answer("GET /v1/jobs", listed([d.job(id="job_0"), d.job(id="job_1")], has_more=True))
    assert len(list(client.jobs.list(limit=2))) == 2
    assert [asked.query["limit"] for asked in server.asked] == [["2"]]


def test_something_else_than_a_list_is_told(server: FakeServer, client: Trainyard) -> None:
    server.answer("GET /v1/jobs", as_json({"jobs": []}))
    with pytest.raises(UnexpectedAnswer, match="did not answer with a list"):
        list(client.jobs.list())


def test_the_token_is_in_no_repr(server: FakeServer) -> None:
    with Trainyard(server.url, "ty_secret") as client:
        assert "ty_secret" not in repr(vars(client.connection))


def test_a_connection_without_a_token_sends_none(server: FakeServer) -> None:
    server.answer("GET /v1/me", refused(401, "unauthenticated", "No token."))
    with Trainyard(server.url) as client:
        assert isinstance(client.connection, Connection)
        with pytest.raises(NotSignedIn):
            client.me()
    assert "authorization" not in server.asked[0].headers
