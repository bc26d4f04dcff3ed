"""Carrier of a workbench: moves frames between the porter and the API, and understands none.

It is a child of the attempt's shim and outside of the sandbox. Its connection is outgoing, so no
port of the node is open, and it is made anew whenever it is lost. The porter's end is a socket pair
that the sandbox inherited: no path is opened that the program inside could change.
"""

import contextlib
import os
import random
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from websockets.exceptions import WebSocketException
from websockets.frames import DATA_OPCODES, Frame, Opcode
from websockets.protocol import Event, State
from websockets.sync.client import ClientConnection, connect

from core.wire.frames import MAX_FRAME
from worker.egress.launch import keep_only
from worker.node.api_client import trusted

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
PING_EVERY_S, SILENT_S = 10.0, 20.0


def fork_carrier(
    link: socket.socket, *, url: str, token: str, ready: Path, prepare: Callable[[], None]
) -> int:
    """Fork a carrier for the porter at the other end of `link`; return its pid.

    `prepare` is called first in the new process. `ready` is a file that it makes once the API and
    the porter have heard each other.
    """
    pid = os.fork()
    if pid == 0:
        _become(link, url, token, ready, prepare)
    return pid


def tunnel_url(api_url: str, job_id: str, epoch: int) -> str:
    """Return the address of an attempt's tunnel."""
    parts = urlsplit(api_url)
    scheme = "wss" if parts.scheme == "https" else "ws"
    return f"{scheme}://{parts.netloc}{parts.path}/v1/node/workbenches/{job_id}/{epoch}/tunnel"


def _become(
    link: socket.socket, url: str, token: str, ready: Path, prepare: Callable[[], None]
) -> NoReturn:
    try:
        prepare()
        keep_only([link])
        carry_on(link, url, token, ready)
    except BaseException:  # the edge of the carrier's process: record, then end
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)
    raise AssertionError  # not reached


def carry_on(link: socket.socket, url: str, token: str, ready: Path) -> None:
    """Carry frames until the porter's end is closed; connect again whenever the API is lost."""
    pause_s, was_away = SHORTEST_PAUSE_S, False
    ended = os.eventfd(0, os.EFD_CLOEXEC)
    while True:
        try:
            with connect(
                url,
                additional_headers={"Authorization": f"Bearer {token}"},
                ssl=trusted() if url.startswith("wss:") else None,
                compression=None,
                max_size=MAX_FRAME,
                open_timeout=10,
                close_timeout=1,
                ping_interval=PING_EVERY_S,
                ping_timeout=SILENT_S,
                create_connection=connection_into(link, ended),
            ) as api:
                pause_s = SHORTEST_PAUSE_S
                if was_away:
                    say("The workbench can be reached again.")
                was_away = False
                if not carry_up(link, api, ended, ready):
                    return
        except (WebSocketException, OSError) as error:
            if not was_away:
                say(f"The workbench cannot be reached: {error}. It goes on, and tries again.")
            was_away = True
        time.sleep(pause_s * random.uniform(0.5, 1.0))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def connection_into(link: socket.socket, ended: int) -> type[ClientConnection]:
    """Return a class of connections whose messages go to the porter; the eventfd `ended` counts
    their ends.

    The thread that receives a message passes it on, so neither a queue nor a second thread is
    between the API and the porter.
    """

    class ConnectionIntoLink(ClientConnection):
        def process_event(self, event: Event) -> None:
            if not isinstance(event, Frame) or event.opcode not in DATA_OPCODES:
                super().process_event(event)
            elif event.data and event.opcode is Opcode.BINARY:  # the API cuts no message in pieces
                with contextlib.suppress(OSError):  # the porter is gone: `carry_up` sees that, too
                    link.send(event.data)

        def recv_events(self) -> None:
            super().recv_events()
            os.eventfd_write(ended, 1)

    return ConnectionIntoLink


def carry_up(link: socket.socket, api: ClientConnection, ended: int, ready: Path) -> bool:
    """Carry frames to the API; return False once the porter's end is closed, True once the API's
    is."""
    is_ready = ready.exists()
    try:
        while True:
            found, _, _ = select.select((link, ended), [], [])
            if ended in found:
                os.eventfd_read(ended)
                if api.state is not State.OPEN:  # else an earlier connection has ended late
                    return True
            if link not in found:
                continue
            message = link.recv(MAX_FRAME)
            if not message:
                return False
            api.send(message)
            if not is_ready:
                ready.touch()
                is_ready = True
    except (WebSocketException, TimeoutError):
        return True


def say(text: str) -> None:
    """Write a line to the launcher's log, which the job's owner can read."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()
