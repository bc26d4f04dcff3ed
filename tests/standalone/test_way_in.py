"""An owner of a platform who has lost every login gets in again, by right of the database."""

import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import typer
from typer.testing import CliRunner, Result

from core.process.settings import ApiSettings
from standalone.commands import login_link
from standalone.data_directory import DataDirectory
from standalone.way_in import DATABASE
from tests.api.conftest import World, client, running_world
from trainyard.cli.platform_commands import KNOWN

# The same on every database: once is enough.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> ApiSettings:
    return ApiSettings(
        database_url=database_url,
        redis_url="unix:///nonexistent/trainyard-test.sock?db=0",
        store=tmp_path / "store",
        public_url="https://yard.example.org",
    )


@pytest.fixture
def world(settings: ApiSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A platform in production, and the environment of its API."""
    monkeypatch.setenv(DATABASE, settings.database_url)
    monkeypatch.setenv("TRAINYARD_REDIS_URL", settings.redis_url)
    monkeypatch.setenv("TRAINYARD_STORE", str(settings.store))
    monkeypatch.setenv("TRAINYARD_PUBLIC_URL", settings.public_url)
    with running_world(settings.model_copy(update={"public_url": ""}), with_node=False) as world:
        yield world


def asked(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(login_link)
    return CliRunner().invoke(app, arguments)


def secret_of(link: str, name: str) -> str:
    [secret] = parse_qs(urlsplit(link).query)[name]
    return secret


def test_the_link_signs_in_as_administrator_once_and_is_audited(world: World) -> None:
    shown = asked()
    assert shown.exit_code == 0, shown.output
    link = shown.stdout.rstrip("\n")
    assert link.startswith("https://yard.example.org/login?link=ty_")
    assert "signs in as ada, once, until " in shown.stderr
    wanted = {"secret": secret_of(link, "link")}
    made = world.nobody.post("/v1/sessions/link", json=wanted)
    assert made.status_code == 201
    assert client(world.app, made.json()["secret"]).get("/v1/users").status_code == 200
    assert client(world.app, None).post("/v1/sessions/link", json=wanted).status_code == 401
    entries = world.admin.get("/v1/admin/audit?action=user.login_link").json()["data"]
    assert [entry["actor"] for entry in entries] == ["trainyard login-link"]


def test_only_an_enabled_administrator_is_signed_in_and_the_others_are_named(world: World) -> None:
    assert world.admin.post("/v1/users", json={"name": "zoe", "role": "admin"}).status_code == 201
    assert "This link signs in as zoe, once" in asked("zoe").stderr
    for name in ("ann", "nobody"):
        refused = asked(name)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"'{name}' is not an enabled administrator here." in refused.stderr
        assert "The enabled administrators are: ada, zoe." in refused.stderr
    assert world.admin.delete("/v1/users/zoe").status_code == 204
    assert "The enabled administrators are: ada." in asked("zoe").stderr


def test_where_nobody_has_an_account_yet_it_makes_the_first(
    settings: ApiSettings, tmp_path: Path
) -> None:
    data = DataDirectory(tmp_path / "data")
    data.path.mkdir()
    (tmp_path / "trainyard.db").rename(data.database)
    shown = asked("--data", str(data.path))
    assert shown.exit_code == 0, shown.output
    assert "Start it before you open the link: trainyard up --data" in shown.stderr
    assert "This link creates the first administrator" in shown.stderr
    link = shown.stdout.rstrip("\n")
    application = running_world(
        settings.model_copy(
            update={
                "database_url": data.database_url,
                "store": data.store,
                "public_url": "",
            }
        )
    )
    body = {"secret": secret_of(link, "secret"), "name": "ada"}
    made = client(application.app, None).post("/v1/first-start", json=body)
    assert made.status_code == 201, made.text
    application.__exit__()
    assert "signs in as ada, once" in asked("--data", str(data.path)).stderr


def test_where_there_is_no_platform_it_says_so_and_makes_none(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = asked("--data", str(tmp_path / "elsewhere"))
    assert refused.exit_code == 2
    assert f"There is no platform in {tmp_path / 'elsewhere'}." in refused.stderr
    assert not (tmp_path / "elsewhere").exists()
    monkeypatch.setenv(DATABASE, database_url)
    refused = asked()
    assert refused.exit_code == 2
    assert (
        "Set TRAINYARD_REDIS_URL, TRAINYARD_STORE to the same values as for the API."
        in refused.stderr
    )


def test_every_command_of_the_platform_is_offered_and_shown_in_the_help(database_url: str) -> None:
    offered = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]["trainyard.commands"]
    assert set(offered) == set(KNOWN)
    for name, value in offered.items():
        assert callable(EntryPoint(name, value, "trainyard.commands").load())
