"""Choice of the server and the token: arguments, then environment, then the file of `login`.

The file is `$XDG_CONFIG_HOME/trainyard/config.json` (by default below `~/.config`), readable by its
owner alone. It holds one token per address, so that a token is never sent to another server.
"""

import ipaddress
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from trainyard.errors import BadInput, NotConfigured

URL_VARIABLE = "TRAINYARD_URL"
TOKEN_VARIABLE = "TRAINYARD_TOKEN"
DEFAULT_URL = "http://127.0.0.1:8471"  # where `trainyard up` serves


@dataclass(frozen=True)
class Server:
    """Settings that `login` keeps for one server."""

    token: str = field(repr=False)
    user: str
    is_session: bool = True
    """True for a token made by signing in, which signing out revokes; False for a token that was
    given."""


@dataclass(frozen=True)
class Config:
    """The file's content."""

    url: str | None = None
    """The server that is used when nothing else names one."""
    servers: Mapping[str, Server] = field(default_factory=dict)

    def with_server(self, url: str, server: Server) -> "Config":
        """Return the configuration after signing in at `url`, which becomes the current server."""
        return Config(url=url, servers={**self.servers, url: server})

    def without_server(self, url: str) -> "Config":
        """Return the configuration after signing out at `url`."""
        left = {name: server for name, server in self.servers.items() if name != url}
        return replace(self, servers=left)


@dataclass(frozen=True)
class Access:
    """An address and the token for it."""

    url: str
    token: str | None = field(repr=False)


def config_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file that `login` keeps."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "trainyard" / "config.json"


def resolve(
    url: str | None, token: str | None, *, environ: Mapping[str, str] = os.environ
) -> Access:
    """Return the address and token to use; an empty `token` means none. Raises NotConfigured."""
    config = read(config_path(environ))
    chosen = normal_url(url or environ.get(URL_VARIABLE) or config.url or DEFAULT_URL)
    kept = config.servers.get(chosen)
    if token is None:
        token = environ.get(TOKEN_VARIABLE) or (kept.token if kept else None)
    return Access(chosen, token or None)


def normal_url(url: str) -> str:
    """Return the full form of an address, `http://host:8471` for `host:8471/`. Raises BadInput."""
    words = url.strip()
    parts = urlsplit(words if "://" in words else f"http://{words}")
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is not a number, or above 65535
        usable = False
    if not usable or parts.username is not None:
        raise BadInput(f"{url!r} is not a server address; write it like {DEFAULT_URL}")
    return urlunsplit((parts.scheme, parts.netloc.lower(), parts.path.rstrip("/"), "", ""))


def is_readable_on_the_way(url: str) -> bool:
    """Return True if a token sent to `url` crosses a network without encryption."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" or host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def read(path: Path) -> Config:
    """Read the file's content; it is empty if there is no file. Raises NotConfigured."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        servers = {
            url: Server(str(kept["token"]), str(kept["user"]), is_session=kept["session"] is True)
            for url, kept in document["servers"].items()
        }
        return Config(url=document["url"], servers=servers)
    except FileNotFoundError:
        return Config()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotConfigured(
            f"{path} can't be read ({error}). Remove it and run `trainyard login` again."
        ) from error


def write(path: Path, config: Config) -> None:
    """Replace the file in one step; only its owner can read it."""
    document = {
        "url": config.url,
        "servers": {
            url: {"token": server.token, "user": server.user, "session": server.is_session}
            for url, server in config.servers.items()
        },
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".config-")  # mode 0600
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
        os.replace(temporary, path)
    except OSError as error:
        raise NotConfigured(f"{path} can't be written ({error}).") from error
