"""Which server and which token."""

import json
import stat
from pathlib import Path

import pytest

from trainyard.errors import BadInput, NotConfigured
from trainyard.transport.config import (
    DEFAULT_URL,
    Config,
    Server,
    config_path,
    is_readable_on_the_way,
    normal_url,
    read,
    resolve,
    write,
)

URL = "https://gpu.example.edu"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with a settings file for URL."""
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    write(config_path(environ), Config().with_server(URL, Server("ty_kept", "ada")))
    return environ


def test_only_its_owner_can_read_the_file(environ: dict[str, str]) -> None:
    path = config_path(environ)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["config.json"]


def test_a_file_that_others_could_read_is_closed_again(environ: dict[str, str]) -> None:
    path = config_path(environ)
    path.chmod(0o644)
    write(path, read(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_argument_before_environment_before_file(environ: dict[str, str]) -> None:
    assert resolve(None, None, environ=environ).url == URL
    environ |= {"TRAINYARD_URL": "http://10.0.0.1:8471", "TRAINYARD_TOKEN": "ty_env"}
    assert resolve(None, None, environ=environ).url == "http://10.0.0.1:8471"
    assert resolve(None, None, environ=environ).token == "ty_env"
    given = resolve("http://10.0.0.2", "ty_given", environ=environ)
    assert (given.url, given.token) == ("http://10.0.0.2", "ty_given")
    assert resolve(URL, "", environ=environ).token is None


def test_a_kept_token_goes_to_its_own_server_only(environ: dict[str, str]) -> None:
    assert resolve(None, None, environ=environ).token == "ty_kept"
    assert resolve("https://evil.example", None, environ=environ).token is None
    assert resolve("http://gpu.example.edu", None, environ=environ).token is None
    assert resolve("https://GPU.example.edu/", None, environ=environ).token == "ty_kept"


def test_without_anything_it_is_this_machine(tmp_path: Path) -> None:
    access = resolve(None, None, environ={"XDG_CONFIG_HOME": str(tmp_path)})
    assert (access.url, access.token) == (DEFAULT_URL, None)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"url": null}', '{"url": "x", "servers": []}'])
def test_a_spoilt_file_says_what_to_do(environ: dict[str, str], content: str) -> None:
    config_path(environ).write_text(content)
    with pytest.raises(NotConfigured, match=r"Remove it and run `trainyard login` again"):
        resolve(None, None, environ=environ)


def test_signing_out_forgets_one_server(environ: dict[str, str]) -> None:
    path = config_path(environ)
    write(path, read(path).with_server("http://other", Server("ty_2", "bob")))
    write(path, read(path).without_server(URL))
    assert json.loads(path.read_text())["servers"] == {
        "http://other": {"token": "ty_2", "user": "bob", "session": True}
    }


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("host:8471", "http://host:8471"),
        (" https://Host/ ", "https://host"),
        ("http://[::1]:8471/", "http://[::1]:8471"),
        ("https://host/train/?x=1#y", "https://host/train"),
    ],
)
def test_addresses_are_written_in_one_way(given: str, normal: str) -> None:
    assert normal_url(given) == normal


@pytest.mark.parametrize(
    "given", ["", "http://", "ftp://host", "http://host:99999", "http://host:x", "http://a:b@host"]
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(BadInput, match="not a server address"):
        normal_url(given)


@pytest.mark.parametrize(
    ("url", "readable"),
    [
        ("http://127.0.0.1:8471", False),
        ("http://[::1]:8471", False),
        ("http://localhost:8471", False),
        ("https://gpu.example.edu", False),
        ("http://gpu.example.edu", True),
        ("http://10.0.0.1", True),
    ],
)
def test_a_token_in_clear_is_noticed(url: str, readable: bool) -> None:
    assert is_readable_on_the_way(url) is readable
