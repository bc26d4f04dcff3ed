"""Backup and restore: everything comes back, on either database; damage is found; jobs go on."""

import json
import stat
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Table, insert, make_url, select, text, update

from api.app import create_app
from api.files.retention import Retention
from api.files.store import Store
from api.scripts.secret_box import SecretBox
from core.base.clock import utc_now
from core.database.database import Database
from core.database.schema import LAST_OF_0_1_0, upgrade
from core.notices import deliveries
from core.notices.notices import NoticeKind, notify
from core.process import read_only
from core.process.settings import ApiSettings
from core.tables.files import StoredFile
from core.tables.kinds import Role
from core.tables.notices import Delivery
from core.tables.processes import Claim
from core.tables.scripts import Secret
from standalone.backup import MANIFEST, NOT_SENT, BackupFailed, BackupManifest, back_up, restore
from standalone.backup_keys import KEYS, WrongKeys
from standalone.dump import count_on, from_json, tables_of
from tests.api.conftest import World, add_person, client, running_world
from tests.api.files.test_retention import put
from tests.api.shapes import heartbeat, job_spec, place

# A job that ran, as version 0.1.0 last had it, with the tokens of its people and its node.
BEFORE = Path(__file__).with_name("before.json")
NOWHERE = "unix:///nonexistent/trainyard-test.sock?db=0"


def quiet(_: str) -> None: ...


def keys_of(world: World) -> Path:
    return world.process.settings.secrets_key_file


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> ApiSettings:
    return ApiSettings(database_url=database_url, redis_url=NOWHERE, store=tmp_path / "store")


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables, of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'restored.db'}"
        return
    server = make_url(request.getfixturevalue("postgresql_url"))
    address = server.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE DATABASE ty_restored")
    yield server.set(database="ty_restored").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP DATABASE ty_restored WITH (FORCE)")


def running_job(world: World) -> str:
    """A job that trains on `box`, with a point, a line and a checkpoint."""
    job_id = str(world.ann.post("/v1/jobs", json=job_spec()).json()["id"])
    place(world.database, job_id)
    seen = {"job_id": job_id, "epoch": 1, "phase": "running", "step": 7}
    assert world.node.post("/v1/node/heartbeat", json=heartbeat(seen)).status_code == 200
    told = {"job_id": job_id, "epoch": 1}
    lines = [{"step": 7, "time": 1.0, "loss": 2.5}]
    metrics = {**told, "rank": 0, "first_line": 0, "lines": lines}
    assert world.node.post("/v1/node/metrics", json=metrics).status_code == 200
    report = {**told, "step": 7, "files": [put(world, "manifest.json", b"{}")]}
    assert world.node.post("/v1/node/checkpoints", json=report).status_code == 204
    return job_id


def still_runs(world: World, job_id: str) -> None:
    """Owner and node go on as if nothing had happened."""
    assert world.ann.get(f"/v1/jobs/{job_id}").json()["state"] == "running"
    seen = {"job_id": job_id, "epoch": 1, "phase": "running", "step": 9}
    answer = world.node.post("/v1/node/heartbeat", json=heartbeat(seen))
    assert [order["job_id"] for order in answer.json()["attempts"]] == [job_id]
    lines = [{"step": 9, "time": 2.0, "loss": 2.25}]
    metrics = {"job_id": job_id, "epoch": 1, "rank": 0, "first_line": 1, "lines": lines}
    assert world.node.post("/v1/node/metrics", json=metrics).json()["next_line"] == 2
    series = world.ann.get(f"/v1/jobs/{job_id}/metrics?keys=loss").json()["series"][0]
    assert (series["steps"], series["values"]) == ([7, 9], [2.5, 2.25])


@pytest.mark.parametrize(
    ("database_url", "empty_url"),
    [("sqlite", "postgresql"), ("postgresql", "sqlite")],
    indirect=True,
)
def test_everything_comes_back_on_either_database(
    settings: ApiSettings, empty_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "backup"
    with running_world(settings) as world:
        job_id = running_job(world)
        manifest = back_up(world.database, world.store, keys_of(world), folder, quiet)
        world.ann.post("/v1/jobs", json=job_spec(name="too-late"))
    database = Database(empty_url)
    restored = tmp_path / "restored"
    assert restore(database, Store(restored), restored / KEYS, folder, quiet) == manifest
    database.close()
    after = settings.model_copy(update={"database_url": empty_url, "store": restored})
    with running_world_again(after, world.tokens) as again:
        still_runs(again, job_id)
        assert len(again.ann.get("/v1/jobs").json()["data"]) == 1
        (checkpoint,) = again.ann.get(f"/v1/jobs/{job_id}/checkpoints").json()["data"]
        address = f"/v1/jobs/{job_id}/checkpoints/{checkpoint['id']}?path=manifest.json"
        assert again.ann.get(address).content == b"{}"
        assert again.ann.post("/v1/jobs", json=job_spec()).status_code == 201


class running_world_again:
    """An application on a restored database, for the people and the node of before."""

    def __init__(self, settings: ApiSettings, tokens: dict[str, str]) -> None:
        self.app = create_app(settings)
        self.process = self.app.state.process
        named = {"ann": "ann", "bob": "bob", "staff": "stefan", "admin": "ada", "node": "box"}
        clients = {who: client(self.app, tokens[name]) for who, name in named.items()}
        self.world = World(
            app=self.app,
            process=self.process,
            nobody=client(self.app, None),
            tokens=tokens,
            **clients,
        )

    def __enter__(self) -> World:
        return self.world

    def __exit__(self, *_: object) -> None:
        self.process.ringer.close()
        self.process.database.close()


def test_jobs_run_through_an_upgrade_from_an_earlier_schema(empty_url: str, tmp_path: Path) -> None:
    """A database as an earlier version left it while a job ran; then this version starts."""
    before = json.loads(BEFORE.read_text())
    passed = utc_now() - datetime.fromisoformat(before["made_at"])
    database = Database(empty_url)
    assert before["revision"] == LAST_OF_0_1_0
    upgrade(database, to=before["revision"])
    with database.write() as session:
        connection = session.connection()
        for table in tables_of(connection):
            rows = [later(table, row, passed) for row in before["tables"].get(table.name, [])]
            if rows:
                connection.execute(insert(table), rows)
        count_on(connection, tables_of(connection))
        session.execute(text("UPDATE alembic_version SET version_num = :r"), {"r": LAST_OF_0_1_0})
    upgrade(database)
    database.close()
    settings = ApiSettings(database_url=empty_url, redis_url=NOWHERE, store=tmp_path / "store")
    with running_world_again(settings, before["tokens"]) as world:
        still_runs(world, before["job"])


def later(table: Table, row: dict[str, Any], passed: timedelta) -> dict[str, Any]:
    """The row as if it had been written just now: leases would be over otherwise."""
    values = {name: from_json(table.c[name].type, value) for name, value in row.items()}
    return {
        name: value + passed if isinstance(value, datetime) else value
        for name, value in values.items()
    }


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("what", ["table", "file", "manifest"])
def test_a_damaged_backup_is_refused_before_anything_is_written(
    settings: ApiSettings, empty_url: str, tmp_path: Path, what: str
) -> None:
    folder = tmp_path / "backup"
    with running_world(settings) as world:
        running_job(world)
        back_up(world.database, world.store, keys_of(world), folder, quiet)
    victim = {
        "table": folder / "tables" / "jobs.jsonl.gz",
        "file": next((folder / "files").glob("*/*")),
        "manifest": folder / MANIFEST,
    }[what]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 0xFF
    victim.write_bytes(content)
    database = Database(empty_url)
    restored = tmp_path / "restored"
    with pytest.raises(BackupFailed, match=r"damaged|not hold a finished backup"):
        restore(database, Store(restored), restored / KEYS, folder, quiet)
    with database.read() as session:
        assert tables_of(session.connection()) == []
    database.close()
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("revision", [LAST_OF_0_1_0, "20261124_certificates"])
def test_a_backup_of_version_0_1_0_comes_back_if_it_was_of_its_last_schema(
    empty_url: str, tmp_path: Path, revision: str
) -> None:
    folder = tmp_path / "backup"
    source, keys = Database(f"sqlite:///{tmp_path / 'before.db'}"), tmp_path / "no-keys"
    upgrade(source, LAST_OF_0_1_0)
    with source.write() as session:
        lab = "INSERT INTO labs (id, name, created_at) VALUES ('a', 'b', '2026-01-01 00:00:00')"
        session.execute(text(lab))
    back_up(source, Store(tmp_path / "store"), keys, folder, quiet)
    source.close()
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "revision": revision}))
    database = Database(empty_url)
    restored = tmp_path / "restored"
    if revision == LAST_OF_0_1_0:
        restore(database, Store(restored), restored / KEYS, folder, quiet)
        with database.read() as session:
            assert session.scalar(text("SELECT count(*) FROM labs")) == 1
    else:
        with pytest.raises(BackupFailed, match=r"Start the last commit of version 0\.1\.0"):
            restore(database, Store(restored), restored / KEYS, folder, quiet)
        with database.read() as session:
            assert tables_of(session.connection()) == []
    database.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_database_in_use_is_not_restored_into(settings: ApiSettings, tmp_path: Path) -> None:
    with running_world(settings) as world:
        back_up(world.database, world.store, keys_of(world), tmp_path / "backup", quiet)
        with pytest.raises(BackupFailed, match="is not empty"):
            restore(world.database, world.store, keys_of(world), tmp_path / "backup", quiet)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_second_backup_copies_what_is_new_and_one_of_a_broken_store_is_none(
    settings: ApiSettings, tmp_path: Path
) -> None:
    folder = tmp_path / "backup"
    said: list[str] = []
    with running_world(settings) as world:
        job_id = running_job(world)
        back_up(world.database, world.store, keys_of(world), folder, quiet)
        more = {"job_id": job_id, "epoch": 1, "step": 8, "files": [put(world, "x", b"new")]}
        assert world.node.post("/v1/node/checkpoints", json=more).status_code == 204
        back_up(world.database, world.store, keys_of(world), folder, said.append)
        assert said[-1] == "2 files, 1 of them new."
        digest = put(world, "x", b"lost")["sha256"]
        world.store.remove(str(digest))
        with pytest.raises(BackupFailed, match="not in the store"):
            back_up(world.database, world.store, keys_of(world), folder, quiet)
    with pytest.raises(BackupFailed, match="not hold a finished backup"):
        BackupManifest.read(folder)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sequences_go_on_behind_what_was_restored(
    settings: ApiSettings, empty_url: str, tmp_path: Path
) -> None:
    with running_world(settings) as world:
        running_job(world)
        back_up(world.database, world.store, keys_of(world), tmp_path / "backup", quiet)
    database = Database(empty_url)
    restored = tmp_path / "restored"
    restore(database, Store(restored), restored / KEYS, tmp_path / "backup", quiet)
    with database.write() as session:
        before = session.scalar(text("SELECT max(id) FROM events"))
        session.execute(
            text(
                "INSERT INTO events (at, subject, kind, reason_code, message, actor) "
                "VALUES (CURRENT_TIMESTAMP, 'x', 'tested', '', '', '')"
            )
        )
        assert session.scalar(text("SELECT max(id) FROM events")) == before + 1
    database.close()


@pytest.fixture
def sealed(settings: ApiSettings, tmp_path: Path) -> Path:
    """A backup of a platform where a user has sealed a secret."""
    folder = tmp_path / "backup"
    said: list[str] = []
    with running_world(settings, with_node=False) as world:
        assert world.ann.put("/v1/secrets/TOKEN", json={"value": "as before"}).status_code == 200
        back_up(world.database, world.store, keys_of(world), folder, said.append)
    assert "anybody who can read the folder can decrypt users' secrets" in said[-1]
    assert stat.S_IMODE((folder / KEYS).stat().st_mode) == 0o600
    return folder


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
class TestSecrets:
    def test_they_are_opened_after_a_restore(
        self, settings: ApiSettings, sealed: Path, empty_url: str, tmp_path: Path
    ) -> None:
        database, restored = Database(empty_url), tmp_path / "restored"
        restore(database, Store(restored), restored / KEYS, sealed, quiet)
        assert stat.S_IMODE((restored / KEYS).stat().st_mode) == 0o600
        with database.read() as session:
            [value] = session.scalars(select(Secret.sealed))
        assert SecretBox(restored / KEYS).open(value) == "as before"
        database.close()

    def test_a_backup_before_there_were_keys_in_it_says_that_they_are_lost(
        self, settings: ApiSettings, sealed: Path, empty_url: str, tmp_path: Path
    ) -> None:
        manifest = json.loads((sealed / MANIFEST).read_text())
        del manifest["keys_sha256"]
        (sealed / MANIFEST).write_text(json.dumps({**manifest, "format": 1}))
        (sealed / KEYS).unlink()
        said: list[str] = []
        database, restored = Database(empty_url), tmp_path / "restored"
        restore(database, Store(restored), restored / KEYS, sealed, said.append)
        assert any(line.startswith("1 secret of users cannot be decrypted") for line in said)
        assert not (restored / KEYS).exists()
        database.close()

    def test_damaged_or_other_keys_are_refused_before_anything_is_written(
        self, settings: ApiSettings, sealed: Path, empty_url: str, tmp_path: Path
    ) -> None:
        database, store, other = Database(empty_url), Store(tmp_path / "restored"), tmp_path / KEYS
        SecretBox(other).make_first_key()
        with pytest.raises(WrongKeys, match="differ from those of the backup"):
            restore(database, store, other, sealed, quiet)
        other.write_text(other.read_text() + (sealed / KEYS).read_text())
        (sealed / KEYS).write_text("damaged")
        with pytest.raises(WrongKeys, match="is damaged or missing"):
            restore(database, store, other, sealed, quiet)
        with database.read() as session:
            assert tables_of(session.connection()) == []
        assert not store.root.exists()
        database.close()

    def test_without_its_keys_nothing_is_backed_up_and_no_new_key_is_made(
        self, settings: ApiSettings, sealed: Path, empty_url: str, tmp_path: Path
    ) -> None:
        process = create_app(settings).state.process
        tokens = add_person(process.database, "zoe", Role.USER)
        process.settings.secrets_key_file.unlink()
        zoe = client(create_app(settings), tokens)
        answer = zoe.put("/v1/secrets/TOKEN", json={"value": "another"})
        assert (answer.status_code, answer.json()["code"]) == (503, "secret_key_missing")
        assert not process.settings.secrets_key_file.exists()
        keys = process.settings.secrets_key_file
        with pytest.raises(WrongKeys, match=r"1 secret.* TRAINYARD_SECRETS_KEY right"):
            back_up(process.database, process.service(Store), keys, sealed, quiet)
        with pytest.raises(BackupFailed, match="not hold a finished backup"):
            BackupManifest.read(sealed)
        process.ringer.close()
        process.database.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_no_api_sweeps_during_a_backup_however_soon_it_was_due(
    settings: ApiSettings, tmp_path: Path
) -> None:
    """Another API's claim ends in ten minutes; then a third one would sweep."""
    with running_world(settings) as world:
        running_job(world)
        put(world, "x", b"named by nothing since days")
        soon = utc_now() + timedelta(minutes=10)
        with world.database.write() as session:
            session.execute(update(StoredFile).values(named_at=soon - timedelta(days=3)))
            session.merge(Claim(chore="retention", holder="another API", until=soon))
        third = Retention(world.database, world.store, settings, "a third API")
        swept: list[bool] = []

        def say(_: str) -> None:
            swept.append(third.run(soon + timedelta(minutes=2)))

        back_up(world.database, world.store, keys_of(world), tmp_path / "backup", say)
        assert swept == [False, False]
        assert third.run(soon + timedelta(hours=6))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("empty_url", "was_read_only"),
    [
        ("sqlite", False),
        ("postgresql", True),
        pytest.param("sqlite", True, marks=pytest.mark.slow),
        pytest.param("postgresql", False, marks=pytest.mark.slow),
    ],
    indirect=["empty_url"],
)
def test_a_notice_leaves_once_of_the_platform_and_of_its_restored_copy(
    settings: ApiSettings, empty_url: str, tmp_path: Path, was_read_only: bool
) -> None:
    """What waited when the backup was made has left since, unless nothing could leave."""
    folder, restored = tmp_path / "backup", tmp_path / "restored"
    with running_world(settings, with_node=False) as world:
        ann = world.ann.get("/v1/me").json()["user"]["id"]
        address = {"email": "ann@example.org"}
        assert world.admin.patch(f"/v1/users/{ann}", json=address).status_code == 200
        facts = {"message": "Your lease ends in 15 minutes."}
        with world.database.write() as session:
            notify(session, ann, NoticeKind.LEASE_ENDING, "lease_1", facts, now=utc_now())
            if was_read_only:
                read_only.begin(session, "It moves.", now=utc_now(), lasts=timedelta(minutes=5))
        back_up(world.database, world.store, keys_of(world), folder, quiet)
    database = Database(empty_url)
    restore(database, Store(restored), restored / KEYS, folder, quiet)
    with database.write() as session:
        read_only.end(session)
        assert deliveries.is_anything_due(session, utc_now()) is was_read_only
        told = [row.error for row in session.scalars(select(Delivery))]
    assert told == ([] if was_read_only else [NOT_SENT])
    database.close()
