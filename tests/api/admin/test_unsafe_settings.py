"""What is told of an installation that could be safer: each finding, and no secret."""

from pathlib import Path
from typing import Any

import pytest

from api.admin.routes_unsafe_settings import Facts, unsafe
from core.process.settings import ApiSettings
from tests.api.conftest import World
from tests.api.shapes import INVENTORY, heartbeat

FACTS = Facts(people=3, admins=2, has_policy=True, without_sandbox=())
SAFE: dict[str, Any] = {
    "database_url": "postgresql+psycopg://yard:Zr8x@db/yard",
    "redis_url": "rediss://:Qm4k@cache:6379/0",
    "public_url": "https://yard.example.org",
    "store": Path("/srv/store"),
    "secrets_key": Path("/etc/trainyard/secrets.key"),
    "user_storage_gib": 100,
}


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """Nothing here differs between the databases."""
    return sqlite_url


def found(facts: Facts = FACTS, **changes: Any) -> list[tuple[str, str]]:
    """(setting, level) of every finding."""
    settings = ApiSettings(**{**SAFE, **changes})
    url = settings.public_url or f"http://{settings.host}:{settings.port}"
    return [(one.setting, one.level) for one in unsafe(settings, facts, url=url)]


def test_a_safe_installation_has_no_finding() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"public_url": "http://yard.example.org"}, ("TRAINYARD_PUBLIC_URL", "danger")),
        ({"host": "0.0.0.0", "trust_proxy": True}, ("TRAINYARD_HOST", "warn")),
        ({"database_url": "sqlite:////srv/yard.db"}, ("TRAINYARD_DATABASE_URL", "warn")),
        (
            {"database_url": "postgresql+psycopg://yard:postgres@db/yard"},
            ("TRAINYARD_DATABASE_URL", "danger"),
        ),
        ({"redis_url": "redis://cache:6379/0"}, ("TRAINYARD_REDIS_URL", "danger")),
        ({"redis_url": "redis://:Qm4k@cache:6379/0"}, ("TRAINYARD_REDIS_URL", "warn")),
        ({"secrets_key": None}, ("TRAINYARD_SECRETS_KEY", "warn")),
        ({"webhooks_to_private": True}, ("TRAINYARD_WEBHOOKS_TO_PRIVATE", "warn")),
        (
            {"smtp_host": "mail.example.org", "smtp_security": "none"},
            ("TRAINYARD_SMTP_SECURITY", "warn"),
        ),
        (
            {"smtp_host": "mail.example.org", "smtp_security": "none", "smtp_password": "x"},
            ("TRAINYARD_SMTP_SECURITY", "danger"),
        ),
        ({"logins_per_minute": 600}, ("TRAINYARD_LOGINS_PER_MINUTE", "danger")),
        (
            {"address_logins_per_minute": 6000},
            ("TRAINYARD_ADDRESS_LOGINS_PER_MINUTE", "warn"),
        ),
        ({"max_queued_jobs": 0}, ("TRAINYARD_MAX_QUEUED_JOBS", "warn")),
        ({"user_storage_gib": 0}, ("TRAINYARD_USER_STORAGE_GIB", "warn")),
    ],
)
def test_each_unsafe_setting_is_found_alone(
    changes: dict[str, Any], finding: tuple[str, str]
) -> None:
    assert found(**changes) == [finding]


def test_what_the_database_says_is_looked_at_too() -> None:
    assert found(Facts(people=3, admins=1, has_policy=False, without_sandbox=("box",))) == [
        ("booking rules", "warn"),
        ("administrators", "warn"),
        ("sandbox", "warn"),
    ]


def test_this_machine_alone_may_do_without_encryption() -> None:
    local = {"public_url": "", "database_url": "sqlite:////srv/yard.db"}
    assert found(**local, redis_url="unix:///run/valkey.sock?db=0") == []


def test_administrators_read_it_and_no_password_is_in_it(world: World) -> None:
    beat = heartbeat(inventory={**INVENTORY, "sandbox": "", "no_sandbox": "no bwrap"})
    assert world.node.post("/v1/node/heartbeat", json=beat).status_code == 200
    answer = world.admin.get("/v1/admin/unsafe-settings")
    listed = answer.json()["data"]
    assert [one["level"] for one in listed] == sorted(one["level"] for one in listed)
    assert "box cannot sandbox" in next(
        one["found"] for one in listed if one["setting"] == "sandbox"
    )
    for person in (world.ann, world.staff):
        assert person.get("/v1/admin/unsafe-settings").status_code == 403
    secret = ApiSettings(**{**SAFE, "database_url": "postgresql+psycopg://yard:secret@db/yard"})
    told = [one.model_dump_json() for one in unsafe(secret, FACTS, url="https://x.example")]
    assert told
    assert all("secret@" not in text for text in told)
