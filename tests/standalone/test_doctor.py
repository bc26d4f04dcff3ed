"""`trainyard doctor`: every line says what it found, and what to do where something is wrong."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from api.files.store import Store
from core.base.clock import utc_now
from core.database.database import Database
from core.database.schema import LAST_OF_0_1_0, newest_revision
from core.process.settings import ApiSettings
from core.tables.files import StoredFile
from core.tables.kinds import Role
from core.tables.people import User
from core.tables.processes import Leadership
from core.tables.scripts import CodeArchive
from standalone import doctor_node, doctor_server
from standalone.doctor_server import about_folder, about_port, about_safety
from tests.running import own_port
from trainyard.doctor import Examiner, Finding

NOWHERE = "unix:///nonexistent/broker.sock?db=0"


def by_name(findings: Iterator[Finding]) -> dict[str, Finding]:
    found = {finding.what: finding for finding in findings}
    for finding in found.values():
        assert finding.level == "ok" or finding.todo, finding
    return found


@pytest.fixture
def server(
    database_url: str, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database]:
    """The environment of an API that is well."""
    for name, value in {
        "DATABASE_URL": database_url,
        "REDIS_URL": valkey_url,
        "STORE": str(tmp_path / "store"),
        "PORT": str(own_port()),
    }.items():
        monkeypatch.setenv(f"TRAINYARD_{name}", value)
    database = Database(database_url)
    yield database
    database.close()


def test_a_server_that_is_well_has_no_failure(
    server: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "traces" not in by_name(doctor_server.examine())
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    found = by_name(doctor_server.examine())
    assert found["traces"].level == "ok"
    assert {finding.level for finding in found.values()} <= {"ok", "warn"}
    assert found["migrations"].found == newest_revision()
    assert found["broker"].level == "ok"
    assert found["scheduler"].todo == "Start one: trainyard scheduler"
    with server.write() as session:
        later = utc_now().replace(year=2100)
        session.add(Leadership(name="scheduler", holder="box:1:ab", term=3, expires_at=later))
    assert by_name(doctor_server.examine())["scheduler"].found == "box, term 3"


def test_settings_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TRAINYARD_")]:
        monkeypatch.delenv(name)
    told = [finding.found for finding in doctor_server.examine() if finding.level == "fail"]
    assert [line.split(":")[0] for line in told] == [
        "TRAINYARD_DATABASE_URL",
        "TRAINYARD_REDIS_URL",
        "TRAINYARD_STORE",
    ]
    node = [finding.found for finding in doctor_node.examine() if finding.what == "settings"]
    assert len(node) == 3


def test_a_database_of_another_version_says_what_to_do(server: Database) -> None:
    with server.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :r"), {"r": LAST_OF_0_1_0})
    found = by_name(doctor_server.examine())["migrations"]
    assert found.level == "warn"
    assert "Back up" in found.todo
    with server.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '20261124_certificates'"))
    found = by_name(doctor_server.examine())["migrations"]
    assert found.level == "fail"
    assert "Start the last commit of version 0.1.0" in found.todo


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_files_that_only_the_disk_or_only_the_database_knows_are_told(
    server: Database, tmp_path: Path
) -> None:
    assert by_name(doctor_server.examine())["files"].level == "ok"
    store = Store(tmp_path / "store")
    with store.incoming_file() as incoming:
        incoming.write(b"four")
        sha256 = incoming.seal().sha256
        incoming.move()
    found = by_name(doctor_server.examine())["files"]
    assert (found.level, found.found) == (
        "warn",
        f"1 files in the store (4 bytes) are not named by any row, such as {sha256}",
    )
    with server.write() as session:
        session.add(StoredFile(sha256=sha256, size=4, created_at=utc_now()))
    assert by_name(doctor_server.examine())["files"].level == "ok"
    store.remove(sha256)
    found = by_name(doctor_server.examine())["files"]
    assert (found.level, found.found.split(",")[0]) == (
        "fail",
        "1 of 1 files that the database names are not in the store",
    )


def test_archives_of_code_that_hold_what_is_private_are_told_with_their_owner(
    server: Database,
) -> None:
    now = utc_now()
    assert by_name(doctor_server.examine())["code"].level == "ok"
    held = {
        "a" * 64: ["train.py", "lib/net.py"],
        "b" * 64: [".aws/credentials", ".ssh/id_rsa", "deploy.key", "lib/.env", "train.py"],
    }
    with server.write() as session:
        session.add(User(id="user_ada", name="ada", role=Role.USER, created_at=now))
        session.add_all(StoredFile(sha256=sha256, size=4, created_at=now) for sha256 in held)
        session.flush()
        session.add_all(
            CodeArchive(
                user_id="user_ada",
                sha256=sha256,
                size=4,
                unpacked_size=4,
                paths=paths,
                created_at=now,
            )
            for sha256, paths in held.items()
        )
    [found] = [one for one in doctor_server.examine() if one.what == "code"]
    assert (found.level, found.found) == (
        "warn",
        "ada's archive bbbbbbbbbbbb holds .aws/credentials, .ssh/id_rsa, deploy.key and 1 more",
    )
    assert "trainyard archives delete bbbbbbbbbbbb" in found.todo


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_parts_that_are_away_are_told_apart(
    server: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_REDIS_URL", NOWHERE)
    monkeypatch.setenv("TRAINYARD_DATABASE_URL", "postgresql+psycopg://x@/x?host=/nonexistent")
    found = by_name(doctor_server.examine())
    assert (found["broker"].level, found["database"].level) == ("warn", "fail")
    assert "TRAINYARD_DATABASE_URL" in found["database"].todo


def settings(**changes: object) -> ApiSettings:
    return ApiSettings.model_validate(
        {"database_url": "sqlite:///x", "redis_url": NOWHERE, "store": "/tmp/x", **changes}
    )


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, "ok"),
        ({"host": "0.0.0.0"}, "fail"),
        ({"host": "0.0.0.0", "trust_proxy": True}, "fail"),
        ({"trust_proxy": True}, "warn"),
        ({"trust_proxy": True, "public_url": "https://ty.example.org"}, "ok"),
    ],
)
def test_an_api_that_would_send_passwords_in_the_clear_is_told(
    changes: dict[str, object], level: str
) -> None:
    (finding,) = about_safety(settings(**changes))
    assert finding.level == level


def test_a_port_that_something_else_has_is_told() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        taken.settimeout(0.1)
        port = taken.getsockname()[1]
        assert about_port(settings(port=port)).level == "fail"
    assert about_port(settings(port=own_port())).level == "ok"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    finding = about_folder(Examiner("server"), "store", tmp_path / "file" / "store")
    assert (finding.level, finding.todo) == ("fail", "Make it writable for the platform's user.")


def test_a_node_tells_its_sandboxes_and_the_api_it_cannot_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_API_URL", f"http://127.0.0.1:{own_port()}")
    monkeypatch.setenv("TRAINYARD_REDIS_URL", NOWHERE)
    monkeypatch.setenv("TRAINYARD_DATA", str(tmp_path / "node"))
    findings = list(doctor_node.examine())
    found = by_name(iter(findings))
    assert found["api"].level == "fail"
    assert found["identity"].level == "warn"
    assert found["data"].level in ("ok", "warn")
    sandboxes = [finding.found for finding in findings if finding.what == "sandbox"]
    assert [line.split(":")[0] for line in sandboxes[:2]] == ["bubblewrap", "namespaces"]


def test_a_node_tells_whether_jobs_can_offload_to_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("c++", "ninja"):
        (programs / name).write_text("#!/bin/sh\nexit 0\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = doctor_node.about_files()
    assert (found.level, found.todo) == (
        "warn",
        "As the worker's user: python -m strategies.train.engines.async_io",
    )
    library = tmp_path / "trainyard" / "async_io" / "async_io" / "async_io.so"
    library.parent.mkdir(parents=True)
    library.touch()
    assert doctor_node.about_files().found == "jobs can offload to files"
    (programs / "c++").write_text("#!/bin/sh\nexit 1\n")
    found = doctor_node.about_files()
    assert (found.level, found.todo) == ("ok", "If jobs need it: apt install libaio-dev")
