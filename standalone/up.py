"""`trainyard up`: the whole platform in one data directory, until Ctrl-C."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from sqlalchemy import select

from api.sign_in.owner_links import OwnerLink, is_password_missing, owner_link
from api.web.credentials import issue_link
from core.base.clock import utc_now
from core.database.database import Database
from core.database.schema import is_newest, upgrade
from core.jobs.attempts import ask_to_stop
from core.process.garbage import uncollected
from core.states import LIVE_JOB, JobState, Outcome
from core.tables.jobs import Job
from core.tables.kinds import LinkKind
from core.tables.nodes import Node
from core.wire.doorbell import Doorbell
from standalone import valkey
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
from strategies.plan.durable_files import PRIVATE, write_atomically
from strategies.plan.words import counted

LOCAL_NODE = "this-machine"
NVIDIA = Path("/dev/nvidiactl")
SAVE_DEADLINE_S = 90.0  # for the jobs to save and stop after Ctrl-C
ACTOR = "trainyard up"

Say = Callable[[str], None]


def run(data: DataDirectory, port: int | None, say: Say) -> None:
    """Start, keep running, and on SIGINT or SIGTERM save and requeue all jobs, then stop.

    Raises AlreadyRunning, StartFailed or UnknownRevision.
    """
    stop = threading.Event()
    interrupt_on_signals(stop)
    data.create()
    lock = data.lock()
    data.address.unlink(missing_ok=True)  # a platform that was killed has left its own
    upgrade_of = _begin_upgrade(data)
    listener = listen(port)
    with uncollected():
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
        _greet(data, processes, say)
        processes.keep_running(stop, say)
        _save_jobs(data, processes, say)
    finally:
        data.address.unlink(missing_ok=True)
        processes.stop()
        listener.close()
        assert lock >= 0  # held until here
    say("Stopped. The next `trainyard up` continues where this one ended.")


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


def _greet(data: DataDirectory, processes: Processes, say: Say) -> None:
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


def _save_jobs(data: DataDirectory, processes: Processes, say: Say) -> None:
    """Ask every running job for a checkpoint, wait until all have stopped and are queued again."""
    processes.scheduler.stop()  # or it would start them again
    with _opened(data) as database:
        _save(database, data, say)


def _save(database: Database, data: DataDirectory, say: Say) -> None:
    bell = Doorbell(valkey.url(data.path))
    with database.write() as session:
        live = session.scalars(select(Job).where(Job.state.in_(LIVE_JOB))).all()
        for job in live:
            if job.state is not JobState.STOPPING:
                ask_to_stop(
                    session,
                    job,
                    Outcome.PREEMPTED,
                    now=utc_now(),
                    message="The platform is being stopped: saving a checkpoint.",
                    actor=ACTOR,
                )
    if not live:
        return
    say(f"Saving {counted(len(live), 'running job')} ...")
    bell.ring_node(LOCAL_NODE)
    deadline = time.monotonic() + SAVE_DEADLINE_S
    while time.monotonic() < deadline:
        with database.read() as session:
            left = session.scalars(select(Job.name).where(Job.state.in_(LIVE_JOB))).all()
        if not left:
            say("All running jobs were saved and queued again.")
            return
        time.sleep(0.1)
    say(
        f"These jobs were not saved within {SAVE_DEADLINE_S:.0f} s and keep running: "
        f"{', '.join(left)}."
    )
