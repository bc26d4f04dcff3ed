"""`client.workbenches`: programs that one sits in front of, in a lease."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from trainyard.errors import UnexpectedAnswer
from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.sockets import open_socket
from trainyard.views import Workbench

OVER, REFUSED = 1000, 1008  # codes of a WebSocket's end; after any other one may try again


@dataclass(frozen=True)
class TerminalEnd:
    """The end of a look through a terminal."""

    reason: str
    is_over: bool
    """True if the shell has ended, or the server will not have this user back."""


class Terminal:
    """A look through a terminal: iterate over what it shows, and type."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        try:
            facts = json.loads(connection.recv(timeout=15))
            self.offset = int(facts["offset"])
            """Place in the terminal's output after what was shown."""
            self.is_new = bool(facts["is_new"])
            """True if its shell was started just now."""
            ends = facts["ends_at"]
            self.ends_at = None if ends is None else datetime.fromisoformat(ends)
        except (ConnectionClosed, TimeoutError, ValueError, KeyError, TypeError) as error:
            connection.close()
            raise UnexpectedAnswer(f"The terminal's first message was not read: {error}") from error
        self.end = TerminalEnd("", is_over=False)

    def __iter__(self) -> Iterator[bytes]:
        """Yield what it shows, until the connection has ended; `end` then says why."""
        while True:
            try:
                piece = self._connection.recv()
            except ConnectionClosed as error:
                code = 1006 if error.rcvd is None else error.rcvd.code
                reason = "" if error.rcvd is None else error.rcvd.reason
                self.end = TerminalEnd(reason, is_over=code in (OVER, REFUSED))
                return
            if isinstance(piece, bytes):
                self.offset += len(piece)
                yield piece

    def type(self, keys: bytes) -> None:
        """Type. Nothing happens if the connection has ended."""
        self._send(keys)

    def resize(self, rows: int, columns: int) -> None:
        """Say how large the window is."""
        self._send(json.dumps({"rows": rows, "columns": columns}))

    def close(self) -> None:
        """Look away. The shell stays."""
        self._connection.close()

    def _send(self, message: bytes | str) -> None:
        try:
            self._connection.send(message)
        except ConnectionClosed:
            return


class Pipe:
    """A connection to a workbench's SSH server: iterate over what it sends."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        try:
            self.host_key = str(json.loads(connection.recv(timeout=15))["host_key"])
        except (ConnectionClosed, TimeoutError, ValueError, KeyError, TypeError) as error:
            connection.close()
            raise UnexpectedAnswer(f"The server's key was not read: {error}") from error

    def __iter__(self) -> Iterator[bytes]:
        """Yield what the server sends, until the connection has ended."""
        while True:
            try:
                piece = self._connection.recv()
            except ConnectionClosed:
                return
            if isinstance(piece, bytes):
                yield piece

    def send(self, content: bytes) -> None:
        """Send bytes. Nothing happens if the connection has ended."""
        try:
            self._connection.send(content)
        except ConnectionClosed:
            return

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


class Workbenches:
    """Client of one's workbenches. They are jobs: `client.jobs` starts and cancels them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> Iterator[Workbench]:
        """Iterate over your workbenches that wait or run, newest first."""
        for found in self._connection.get("/v1/workbenches")["data"]:
            yield decode(Workbench, found)

    def open_terminal(
        self,
        workbench_id: str,
        name: str = "1",
        *,
        rows: int = 24,
        columns: int = 80,
        offset: int | None = None,
    ) -> Terminal:
        """Look through a terminal of a running workbench, which is started if it is not there.

        `offset`: the place in its output after what was shown before.
        """
        asked = {"rows": rows, "columns": columns, **({} if offset is None else {"offset": offset})}
        address = f"/v1/workbenches/{segment(workbench_id)}/terminals/{segment(name)}"
        access = self._connection.access
        return Terminal(open_socket(access, f"{address}?{urlencode(asked)}"))

    def open_ssh(self, workbench_id: str, key: str) -> Pipe:
        """Connect to the SSH server of a running workbench, which lets in `key`, an ed25519 key as
        OpenSSH writes it, from then on."""
        address = f"/v1/workbenches/{segment(workbench_id)}/ssh?{urlencode({'key': key})}"
        return Pipe(open_socket(self._connection.access, address))
