"""A running platform to sit in front of: starts workbenches, and looks through their terminals."""

import json
import time
from contextlib import ExitStack, suppress
from typing import Any, Self

import httpx2
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.running import Running
from tests.spine.jobs import get, submit

WITHIN_S = 30.0


def start(client: httpx2.Client, *, kind: str = "terminal", **other: Any) -> str:
    """Start a workbench and wait until it can be entered; return its id."""
    resources = {"wall_time": "20min", **other.pop("resources", {})}
    job = submit(
        client, {"name": kind, "workbench": {"kind": kind}, "resources": resources, **other}
    )

    deadline = time.monotonic() + 2 * WITHIN_S
    while (found := get(client, job))["state"] != "running":
        assert found["state"] in ("queued", "starting"), found["reason"]
        assert time.monotonic() < deadline, (found["state"], found["reason"], sharing(client))
        time.sleep(0.05)
    return job


def sharing(client: httpx2.Client) -> list[str]:
    """Which jobs each node takes beside each other, and why not more."""
    nodes = client.get("/v1/nodes").raise_for_status().json()["data"]
    return [f"{node['name']}: {node['sharing']} {node['no_sharing']}" for node in nodes]


def open_socket(
    url: str, path: str, *, token: str | None = None, **headers: str
) -> ClientConnection:
    """Open a WebSocket of the API, as a program or a browser does."""
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    opening = connect(
        f"ws{url.removeprefix('http')}{path}",
        additional_headers=headers,
        compression=None,
        open_timeout=WITHIN_S,
    )
    return ExitStack().enter_context(opening)  # whoever has it closes it


class Looking:
    """A look through a terminal: what it has shown, and how far."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.facts: dict[str, Any] = json.loads(connection.recv(timeout=WITHIN_S))
        self.shown = b""

    @classmethod
    def at(
        cls, platform: Running, job: str, name: str = "1", *, url: str | None = None, **query: int
    ) -> Self:
        asked = "&".join(f"{field}={value}" for field, value in query.items())
        path = f"/v1/workbenches/{job}/terminals/{name}?{asked}"
        return cls(open_socket(url or platform.url, path, token=platform.token))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def type(self, text: str) -> None:
        self.connection.send(text.encode())

    def wait_for(self, text: str) -> bytes:
        """Wait until the terminal shows this text; return all that it has shown."""
        deadline = time.monotonic() + WITHIN_S
        while text.encode() not in self.shown:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} is not in {self.shown[-2000:]!r}"
            piece = self.connection.recv(timeout=left)
            assert isinstance(piece, bytes)
            self.shown += piece
        return self.shown

    def wait_for_end(self) -> None:
        """Wait until the connection has ended."""
        with suppress(ConnectionClosed):
            while True:
                self.connection.recv(timeout=WITHIN_S)

    @property
    def offset(self) -> int:
        """The place in the terminal's output up to which it was shown."""
        return int(self.facts["offset"]) + len(self.shown)
