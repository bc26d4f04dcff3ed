"""Limits by the minute: one count for all API processes, and one for each while Redis is away."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from starlette.testclient import TestClient

from api.app import create_app
from api.web import rate_limits
from api.web.rate_limits import OwnCounts, RateLimited, RateLimits
from core.process.settings import ApiSettings
from tests.api.conftest import NOWHERE, World, client, running_world
from tests.api.shapes import job_spec

LIMIT = 4


@pytest.fixture
def strict(sqlite_url: str, valkey_url: str, tmp_path: Path) -> ApiSettings:
    """Low limits, counted in a real Valkey."""
    return ApiSettings(
        database_url=sqlite_url,
        redis_url=valkey_url,
        store=tmp_path / "store",
        submissions_per_minute=LIMIT,
        logins_per_minute=LIMIT,
    )


@pytest.fixture
def two(strict: ApiSettings, valkey_url: str) -> Iterator[tuple[World, TestClient]]:
    """An application with its people, and ann's client of a second one beside it."""
    forget(valkey_url)  # of other tests
    with ExitStack() as stack:
        world = stack.enter_context(running_world(strict))
        other = create_app(strict)
        stack.callback(other.state.process.database.close)
        for process in (world.process, other.state.process):
            stack.callback(process.limits.close)
        yield world, client(other, world.tokens["ann"])
        forget(valkey_url)


def forget(valkey_url: str) -> None:
    """Nobody has done anything within the last minute."""
    with redis.Redis.from_url(valkey_url) as valkey:
        for key in valkey.scan_iter("trainyard.limits*"):
            valkey.delete(key)


def test_two_apis_share_a_persons_submissions(two: tuple[World, TestClient]) -> None:
    world, elsewhere = two
    answers = [
        asked.post("/v1/jobs", json=job_spec())
        for asked in (world.ann, elsewhere, elsewhere, world.ann, elsewhere, world.ann)
    ]
    assert [answer.status_code for answer in answers] == [201, 201, 201, 201, 429, 429]
    left = [answer.headers["ratelimit-remaining"] for answer in answers]
    assert left == ["3", "2", "1", "0", "0", "0"]
    for answer in answers:
        assert answer.headers["ratelimit-limit"] == str(LIMIT)
        assert 1 <= int(answer.headers["ratelimit-reset"]) <= 60
    refused = answers[-1]
    assert refused.json()["code"] == "rate_limited"
    assert refused.headers["retry-after"] == refused.headers["ratelimit-reset"]
    assert world.bob.post("/v1/jobs", json=job_spec()).status_code == 201


def test_two_apis_share_the_sign_ins_of_a_name(two: tuple[World, TestClient]) -> None:
    world, elsewhere = two
    guess = {"name": "ann", "password": "guess"}
    statuses = [
        asked.post("/v1/sessions", json=guess).status_code
        for asked in (world.nobody, elsewhere, world.nobody, elsewhere, elsewhere, world.nobody)
    ]
    assert statuses == [401, 401, 401, 401, 429, 429]
    shouted = {**guess, "name": "ANN"}
    assert elsewhere.post("/v1/sessions", json=shouted).status_code == 429
    assert elsewhere.post("/v1/sessions", json={**guess, "name": "bob"}).status_code == 401


def test_a_guesser_locks_nobody_else_out(strict: ApiSettings, valkey_url: str) -> None:
    """One address uses up its own tries of a name; its owner, at another one, still gets in."""
    for settings in (strict, strict.model_copy(update={"redis_url": NOWHERE})):
        forget(valkey_url)
        limits = RateLimits(settings)
        for _ in range(LIMIT):
            limits.check_sign_in("192.0.2.66", "ann")
            limits.count_failed_sign_in("192.0.2.66", "ann")
        with pytest.raises(RateLimited, match="failed sign-ins for this name"):
            limits.check_sign_in("192.0.2.66", "ann")
        limits.check_sign_in("192.0.2.7", "ann")
        limits.check_sign_in("192.0.2.66", "bob")
        for number in range(LIMIT * 10 - LIMIT):
            limits.check_sign_in("192.0.2.66", f"name{number}")
            limits.count_failed_sign_in("192.0.2.66", f"name{number}")
        with pytest.raises(RateLimited, match="from your address"):
            limits.check_sign_in("192.0.2.66", "bob")
        with pytest.raises(RateLimited, match="from your address"):
            limits.check_sign_in("192.0.2.66")
        limits.close()
    forget(valkey_url)


def test_one_name_is_not_guessed_from_many_addresses(strict: ApiSettings) -> None:
    limits = RateLimits(strict.model_copy(update={"redis_url": NOWHERE}))
    for number in range(LIMIT * 10):
        limits.check_sign_in(f"192.0.2.{number}", "ann")
        limits.count_failed_sign_in(f"192.0.2.{number}", "ann")
    with pytest.raises(RateLimited, match="failed sign-ins for this name"):
        limits.check_sign_in("192.0.2.99", "ann")
    limits.check_sign_in("192.0.2.99", "bob")


def test_the_wait_that_is_told_is_until_the_first_failure_is_forgotten(
    strict: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one second for everybody: whoever comes back then has room."""
    limits = RateLimits(strict.model_copy(update={"redis_url": NOWHERE}))
    now = 1000.0
    monkeypatch.setattr("api.web.rate_limits.time.monotonic", lambda: now)
    for _ in range(LIMIT):
        limits.count_failed_sign_in("192.0.2.66", "ann")
        now += 5.0
    waits = set()
    for _ in range(50):
        with pytest.raises(RateLimited) as refused:
            limits.check_sign_in("192.0.2.66", "ann")
        waits.add(refused.value.retry_after_s)
    assert min(waits) == 60 - LIMIT * 5
    assert len(waits) > 3
    now += min(waits)
    limits.check_sign_in("192.0.2.66", "ann")


def test_the_limit_of_an_address_is_set_by_itself(strict: ApiSettings) -> None:
    changes = {"redis_url": NOWHERE, "address_logins_per_minute": 200}
    limits = RateLimits(strict.model_copy(update=changes))
    for number in range(199):
        limits.count_failed_sign_in("192.0.2.66", f"name{number}")
    limits.check_sign_in("192.0.2.66", "ann")
    limits.count_failed_sign_in("192.0.2.66", "bob")
    with pytest.raises(RateLimited, match="At most 200 failed sign-ins from your address"):
        limits.check_sign_in("192.0.2.66", "ann")


def test_a_study_counts_whole_or_not_at_all(strict: ApiSettings) -> None:
    limits = RateLimits(strict)
    user = f"user_{uuid.uuid4().hex}"
    assert limits.count_submission(user, jobs=3).remaining == 1
    with pytest.raises(RateLimited):
        limits.count_submission(user, jobs=2)
    assert limits.count_submission(user).remaining == 0
    limits.close()


@pytest.mark.parametrize("is_away", [False, True])
def test_those_who_come_together_are_counted_in_their_order(
    strict: ApiSettings, is_away: bool
) -> None:
    limits = RateLimits(strict.model_copy(update={"redis_url": NOWHERE}) if is_away else strict)
    ann, bob = (f"user_{uuid.uuid4().hex}" for _ in range(2))
    limits.count_submission(ann, jobs=2)
    told = limits.count_submissions([ann, bob, ann, ann])
    left = ["over" if isinstance(one, RateLimited) else one.remaining for one in told]
    assert left == [1, 3, 0, "over"]
    assert limits.count_submissions([]) == []
    limits.close()


def test_without_redis_each_process_counts_for_itself(strict: ApiSettings) -> None:
    away = strict.model_copy(update={"redis_url": NOWHERE})
    first, second = RateLimits(away), RateLimits(away)
    for limits in (first, second):
        for _ in range(LIMIT):
            limits.count_submission("ann")
        with pytest.raises(RateLimited, match="At most 4 submissions a minute"):
            limits.count_submission("ann")


def test_a_redis_that_goes_away_locks_nobody_out(
    strict: ApiSettings, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the process counts by itself; when it is back, its counts hold again."""
    monkeypatch.setattr(rate_limits, "AWAY_S", 0.0)
    road = tmp_path / "valkey"
    there = Path(valkey_url.removeprefix("unix://").partition("?")[0])
    limits = RateLimits(strict.model_copy(update={"redis_url": f"unix://{road}?db=0"}))
    user = f"user_{uuid.uuid4().hex}"
    road.symlink_to(there)
    assert [limits.count_submission(user).remaining for _ in range(3)] == [3, 2, 1]
    road.unlink()
    limits.close()  # as a server does that goes away
    assert [limits.count_submission(user).remaining for _ in range(LIMIT)] == [3, 2, 1, 0]
    with pytest.raises(RateLimited):
        limits.count_submission(user)
    road.symlink_to(there)
    assert limits.count_submission(user).remaining == 0
    with pytest.raises(RateLimited):
        limits.count_submission(user)
    limits.close()


def test_keys_that_are_quiet_are_forgotten() -> None:
    counts = OwnCounts()
    for number in range(10_001):
        counts.count(f"name {number}", 0, 1)
    assert counts.count("one more", 1, 1).allowed
    assert len(counts._times) == 1


def test_plans_are_counted_by_person(strict: ApiSettings, valkey_url: str) -> None:
    forget(valkey_url)
    with running_world(strict) as world:
        for _ in range(rate_limits.PLANS_A_MINUTE):
            world.process.limits.count_plan("user_quick")
        world.process.limits.count_plan("user_other")
        with pytest.raises(RateLimited, match="At most 300 plans a minute"):
            world.process.limits.count_plan("user_quick")
        assert world.ann.post("/v1/jobs/plan", json=job_spec()).status_code == 200
        world.process.limits.close()
    forget(valkey_url)
