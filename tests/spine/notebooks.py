"""Somebody who types into a notebook of a running workbench, as a browser of JupyterLab does."""

import json
import socket
import time
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, Self

import httpx2
from pycrdt import (
    Array,
    Doc,
    Text,
    TransactionEvent,
    YMessageType,
    create_sync_message,
    create_update_message,
    handle_sync_message,
)
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from tests.running import Running

WITHIN_S = 30.0
EMPTY: dict[str, Any] = {
    "cells": [
        {"cell_type": "code", "id": "c1", "metadata": {}, "outputs": [], "source": "",
         "execution_count": None}
    ],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}  # fmt: skip


class Typist:
    """One person in front of one notebook. What was typed is `typed`, with the time of each
    key."""

    def __init__(self, platform: Running, job: str, path: str) -> None:
        host = f"{job.removeprefix('job_')}-1.localhost:{platform.port}"
        self.origin, self.path = f"http://{host}", path
        with platform.http() as client:
            entry = client.post(f"/v1/workbenches/{job}/entry").raise_for_status().json()
        self.browser = httpx2.Client(
            base_url=platform.url, headers={"Host": host, "Origin": self.origin}, timeout=WITHIN_S
        )
        ticket = str(entry["url"]).partition("#")[2]
        entered = self.browser.post("/.trainyard/enter", content=ticket).raise_for_status()
        entrance = entered.headers["set-cookie"].partition(";")[0]
        page = self.browser.get("/lab", headers={"Cookie": entrance}).raise_for_status()
        set_by_it = [one.partition(";")[0] for one in page.headers.get_list("set-cookie")]
        xsrf = next(one.partition("=")[2] for one in set_by_it if one.startswith("_xsrf="))
        self.headers = {"Cookie": "; ".join([entrance, *set_by_it]), "X-XSRFToken": xsrf}
        self.port, self.closing = platform.port, ExitStack()
        self.typed: list[tuple[float, str]] = []
        self.doc: Doc[Any] = Doc()

    def __enter__(self) -> Self:
        found = self.browser.get(f"/api/contents/{self.path}", headers=self.headers)
        if found.status_code == 404:
            made = {"type": "notebook", "format": "json", "content": EMPTY}
            self._put(f"/api/contents/{self.path}", made)
        session = self._put(
            f"/api/collaboration/session/{self.path}", {"format": "json", "type": "notebook"}
        )
        self.socket = self.closing.enter_context(self._connect(session))
        self.socket.send(create_sync_message(self.doc))
        self._hear_until_it_is_here()
        self.subscription = self.doc.observe(self._send)
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.close()
        self.browser.close()

    def _put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.browser.put(path, json=body, headers=self.headers)
        assert answer.status_code in (200, 201), answer.text
        return dict(answer.json())

    def _connect(self, session: dict[str, Any]) -> AbstractContextManager[ClientConnection]:
        room = f"json:notebook:{session['fileId']}"
        return connect(  # a name below localhost is known to browsers alone
            f"ws{self.origin.removeprefix('http')}/api/collaboration/room/{room}"
            f"?sessionId={session['sessionId']}",
            sock=socket.create_connection(("127.0.0.1", self.port)),
            origin=Origin(self.origin),
            additional_headers={"Cookie": self.headers["Cookie"]},
            compression=None,
            max_size=None,
        )

    def _hear_until_it_is_here(self) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not (cells := self.doc.get("cells", type=Array)) or not len(cells):
            message = self.socket.recv(timeout=deadline - time.monotonic())
            assert isinstance(message, bytes)
            self._take(message)

    def _take(self, message: bytes) -> None:
        if message and message[0] == YMessageType.SYNC:
            answer = handle_sync_message(message[1:], self.doc)
            if answer is not None:
                self.socket.send(answer)

    def _send(self, event: TransactionEvent) -> None:
        with suppress(ConnectionClosed):
            self.socket.send(create_update_message(event.update))

    def type(self, word: str) -> bool:
        """Type a word into the first cell; return False once the connection is cut."""
        with suppress(TimeoutError):
            try:
                while True:
                    message = self.socket.recv(timeout=0)
                    assert isinstance(message, bytes)
                    self._take(message)
            except ConnectionClosed:
                return False
        source = self.doc.get("cells", type=Array)[0]["source"]
        assert isinstance(source, Text)
        source += word
        self.typed.append((time.monotonic(), word))
        return True

    def should_be_kept(self, *, before: float) -> str:
        """What was typed before a moment of the monotonic clock."""
        return "".join(word for at, word in self.typed if at < before)


def source_of(notebook: str) -> str:
    """The source of the first cell of a notebook's text."""
    source = json.loads(notebook)["cells"][0]["source"]
    return "".join(source)
