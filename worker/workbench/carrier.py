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
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from websockets.exceptions import WebSocketException
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
            ) as api:
                pause_s = SHORTEST_PAUSE_S
                if was_away:
                    say("The workbench can be reached again.")
                was_away = False
                if not carry(link, api, ready):
                    return
        except (WebSocketException, OSError) as error:
            if not was_away:
                say(f"The workbench cannot be reached: {error}. It goes on, and tries again.")
            was_away = True
        time.sleep(pause_s * random.uniform(0.5, 1.0))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def carry(link: socket.socket, api: ClientConnection, ready: Path) -> bool:
    """Carry frames both ways; return False once the porter's end is closed, True once the API's
    is."""
    heard, closed = os.pipe()
    ends = (link.fileno(), heard)
    down = threading.Thread(target=_carry_down, args=(link, api, closed), daemon=True)
    down.start()
    try:
        while True:
            found, _, _ = select.select(ends, [], [])
            if heard in found:
                return True
            message = link.recv(MAX_FRAME)
            if not message:
                return False
            api.send(message)
            if not ready.exists():
                ready.touch()
    except (WebSocketException, TimeoutError):
        return True
    finally:
        api.close()
        down.join()
        os.close(heard)
        os.close(closed)


def _carry_down(link: socket.socket, api: ClientConnection, closed: int) -> None:
    with contextlib.suppress(WebSocketException, OSError):
        for message in api:
            if isinstance(message, bytes) and message:
                link.send(message)
    os.write(closed, b"c")


def say(text: str) -> None:
    """Write a line to the launcher's log, which the job's owner can read."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()
