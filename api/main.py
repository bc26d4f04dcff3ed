"""`python -m api.main`: one API process."""

import asyncio
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType

import structlog
import uvicorn

from api.app import create_app
from api.middleware.headers import is_loopback
from api.sign_in.first_start import ensure_link
from api.sign_in.oidc_provider import provider_flaw
from api.watching.hub import Hub
from api.web.process import Process
from api.workbenches.origins import domain_flaw
from core.base import tracing
from core.database.schema import UnknownRevision, upgrade
from core.process.settings import ApiSettings

OPEN_FILES = 65_536  # 1,000 live streams and as many requests fit well below it
MAX_MESSAGE_BYTES = 16 << 20  # of a WebSocket: an output of a notebook may be large
GOODBYE_S = 5  # for answers that are on their way when we are asked to stop
# Turn of a thread while others want to run, 5 ms by Python's default. A heartbeat asks for a turn
# again after each of its statements: in the opening minute of a course the longest took 0.64 s with
# 5 ms, and 0.27 s with this.
TURN_S = 0.001
TICK_S = 1.0


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    settings = ApiSettings()
    _require_safe(settings)
    _require_whole(settings)
    _raise_open_files()
    tracing.start("trainyard-api")
    app = create_app(settings)
    process = app.state.process
    try:
        upgrade(process.database)
    except UnknownRevision as error:
        sys.exit(str(error))
    link = ensure_link(process.database, url=process.url, path=settings.first_start_link)
    if link is not None:
        sys.stdout.write(
            f"There are no users yet. Create the first administrator within an hour: {link}\n"
        )
        sys.stdout.flush()
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,  # a terminal's echo is short, and what is large is not text
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # headers.py: uvicorn would take the first address, not the last
        timeout_graceful_shutdown=GOODBYE_S,
        server_header=False,
    )
    inherited = settings.listen_fd
    sockets = None if inherited is None else [socket.socket(fileno=inherited)]
    _shorten_collections()
    sys.setswitchinterval(TURN_S)
    _Server(config, process).run(sockets)
    tracing.stop()


class _Server(uvicorn.Server):
    """Server that ends the live streams when it is asked to stop, instead of waiting for them.

    It wakes up once a second. uvicorn's own looks ten times a second if it is to stop, which was
    two thirds of an idle API's work.
    """

    def __init__(self, config: uvicorn.Config, process: Process) -> None:
        super().__init__(config)
        self._process = process
        self._stop: Callable[[], object] = lambda: None  # nothing waits before the loop runs

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._process.service(Hub).close_soon()
        super().handle_exit(signal.Signals(sig), frame)
        self._stop()

    async def main_loop(self) -> None:
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop = partial(loop.call_soon_threadsafe, stopped.set)
        while not await self.on_tick(0):  # 0: it writes the Date of answers anew
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await stopped.wait()


def _shorten_collections() -> None:
    """Collect garbage in short pauses: all threads wait during each of them.

    By Python's defaults a full collection looked through all that was imported: 0.3 s of CPU, every
    ten seconds of a course's lab hour. Now these objects are left out, and fewer of a request's
    objects are looked at before they are gone.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


def _require_safe(settings: ApiSettings) -> None:
    """Exit unless the API is behind TLS or only this machine can reach it."""
    if is_loopback(settings.host):
        return
    if not settings.trust_proxy:
        sys.exit(
            f"TRAINYARD_HOST={settings.host} would send passwords over the network in the clear. "
            "Put a proxy that ends TLS in front, then set TRAINYARD_TRUST_PROXY=true and "
            "TRAINYARD_PUBLIC_URL=https://...; or listen on 127.0.0.1."
        )
    if not settings.public_url.startswith("https://"):
        sys.exit(
            f"TRAINYARD_HOST={settings.host} with TRAINYARD_TRUST_PROXY needs the https "
            "address that users type; TRAINYARD_PUBLIC_URL is "
            f"{settings.public_url or 'not set'}. Without it sessions could be sent "
            "unencrypted, and any host name would be answered. Set it, or listen on "
            "127.0.0.1."
        )


def _require_whole(settings: ApiSettings) -> None:
    """Exit if the settings of a provider are incomplete, instead of failing at the first
    sign-in, or if the domain of workbenches is of our own site."""
    flaw = provider_flaw(settings) or domain_flaw(settings)
    if flaw:
        sys.exit(flaw)


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    main()
