"""`trainyard up`: the whole platform in one data directory, until Ctrl-C."""

import os
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from sqlalchemy import select

from api.sign_in.owner_links import OwnerLink, is_password_missing, owner_link
from api.web.credentials import issue_link
from core.base.clock import utc_now
from core.database.database import Database
from core.database.schema import is_newest, upgrade
from core.process.imports import lean_imports
from core.tables.kinds import LinkKind
from core.tables.nodes import Node
from standalone.data_directory import DataDirectory
from standalone.forks import Fork
from standalone.processes import (
    FIRST_PORT,
    Processes,
    StartFailed,
    describe,
    interrupt_on_signals,
    listen,
    torch_lacks_cuda,
)
from standalone.saving import ACTOR, LOCAL_NODE
from standalone.supervisor import become_supervisor, say
from strategies.plan.durable_files import PRIVATE, write_atomically

NVIDIA = Path("/dev/nvidiactl")


def run(data: DataDirectory, port: int | None) -> NoReturn:
    """Start all and become their supervisor, which on SIGINT or SIGTERM saves all jobs and stops.

    Raises AlreadyRunning, StartFailed or UnknownRevision.
    """
    stop = threading.Event()
    interrupt_on_signals(stop)
    data.create()
    lock = data.lock()
    data.address.unlink(missing_ok=True)  # a platform that was killed has left its own
    upgrade_of = _begin_upgrade(data)
    listener = listen(port)
    with lean_imports():
        processes = describe(data, listener, forked=True)
        if upgrade_of is not None and upgrade_of.wait() != 0:
            log = _upgrade_log(data)
            raise StartFailed(f"The database was not upgraded: see the end of {log}.")
        enrolment = _enrolment(data)
    try:
        processes.start(enrolment)
        write_atomically(data.address, processes.url.encode(), mode=PRIVATE)
        if port is None and listener.getsockname()[1] != FIRST_PORT:
            say(f"Port {FIRST_PORT} is in use; using {listener.getsockname()[1]}.")
        _greet(data, processes)
        become_supervisor(data, processes.all, lock, stopped=stop.is_set())
    finally:
        data.address.unlink(missing_ok=True)
        processes.stop()


def _opened(data: DataDirectory) -> "closing[Database]":
    """The database for one `with`: no connection may be open when a process is forked."""
    return closing(Database(data.database_url))


def _begin_upgrade(data: DataDirectory) -> Fork | None:
    """Begin to upgrade the database, in a process that ends: what it imports is needed by no other,
    and the others' modules are imported meanwhile. None if it is the newest. Raises
    UnknownRevision."""
    with _opened(data) as database:
        if is_newest(database):
            return None

    def work() -> None:
        with _opened(data) as database:
            upgrade(database)

    log = os.open(_upgrade_log(data), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        return Fork("ty-upgrade", work, {}, log, [])
    finally:
        os.close(log)


def _upgrade_log(data: DataDirectory) -> Path:
    return data.logs / "upgrade.log"


def _greet(data: DataDirectory, processes: Processes) -> None:
    say(f"Trainyard is up at {processes.url}")
    say(f"Data and logs are in {data.path}")
    if data.first_start.exists():
        say(f"Create the first administrator: {data.first_start.read_text().strip()}")
    elif link := _way_in(data, processes):
        say(f"Sign in as {link.name}, once, within an hour: {link.url}")
        say(
            "Set a password on your account page. For another link: trainyard "
            f"login-link{data.option}"
        )
    if torch_lacks_cuda() and NVIDIA.exists():
        say(
            "The installed torch was built without CUDA, so jobs compute on this machine's CPU and "
            "its GPUs are not used. docs/gpus.md names the build to install."
        )
    say("Ctrl-C saves the running jobs and stops; the next `trainyard up` resumes them.")


def _way_in(data: DataDirectory, processes: Processes) -> OwnerLink | None:
    """A link for the administrator; None once there is a password."""
    with _opened(data) as database:
        if not is_password_missing(database):
            return None
        return owner_link(database, url=processes.url, actor=ACTOR)


def _enrolment(data: DataDirectory) -> str:
    """A single-use token for this machine's worker; empty if it is enrolled already."""
    with _opened(data) as database, database.write() as session:
        known = session.scalars(select(Node).where(Node.name == LOCAL_NODE)).first()
        if known is not None and any(data.node.glob("identity*")):
            return ""
        _, secret = issue_link(
            session,
            kind=LinkKind.ENROL,
            now=utc_now(),
            lifetime=timedelta(minutes=15),
            node_name=LOCAL_NODE,
        )
        return secret
