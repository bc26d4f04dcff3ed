"""`trainyard demo`: the platform's main job, through the public client, as a newcomer sees it."""

import getpass
import re
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from rich.console import Console

from api.sign_in.first_start import ensure_link
from api.sign_in.owner_links import owner_link
from core.database.database import Database
from standalone.data_directory import DataDirectory
from standalone.processes import answers
from trainyard import Trainyard, TrainyardError
from trainyard.progress import follow
from trainyard.resources import sessions
from trainyard.summary import show_summary

EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt-ddp.yaml"
UP_DEADLINE_S = 120.0
STOP_DEADLINE_S = 120.0
ACTOR = "trainyard demo"


class DemoFailed(Exception):
    """The demo could not be shown; the message states the reason and the remedy."""


def run(data: DataDirectory, *, example: Path = EXAMPLE) -> int:
    """Train `example`; returns the exit code. Uses a running platform, else starts one."""
    console = Console()
    data.create()
    up = None if answers(data.running_address()) else _start(data, console)
    try:
        client = Trainyard(base_url=data.running_address(), token=_sign_in(data))
        try:
            succeeded = _train(client, example, up, console)
        finally:
            with suppress(TrainyardError):
                sessions.sign_out(client.connection)
        _leave_a_way_in(data, up, console)
        return 0 if succeeded else 1
    except (DemoFailed, TrainyardError) as error:
        console.print(str(error), markup=False)
        return 1
    finally:
        if up is not None:
            _stop(up, console)


def _train(
    client: Trainyard, example: Path, up: subprocess.Popen[bytes] | None, console: Console
) -> bool:
    """Submit the example, follow it to its end and show its result; whether it succeeded."""
    _wait_for_node(client, up)
    job = client.jobs.create(example)
    console.print(f"Submitted [bold]{job.name}[/]: {client.url}/jobs/{job.id}", soft_wrap=True)
    for line in job.plan.warnings:
        console.print(f"Its plan: {line}", soft_wrap=True, markup=False)
    finished = follow(client, job.id, console)
    show_summary(finished.job, console, losses=finished.losses)
    return finished.succeeded


def _start(data: DataDirectory, console: Console) -> subprocess.Popen[bytes]:
    data.address.unlink(missing_ok=True)
    started = time.monotonic()
    output = data.logs / "up.log"
    with open(output, "ab") as log:
        up = subprocess.Popen(
            [sys.executable, "-P", "-m", "standalone", "--data", str(data.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the demo, which then stops the platform
        )
    with console.status("Starting the platform (API, scheduler, worker, Valkey) ..."):
        while not data.running_address():
            if up.poll() is not None or time.monotonic() - started > UP_DEADLINE_S:
                _stop(up, console)
                raise SystemExit(f"The platform did not start. Its output is in {output}.")
            time.sleep(0.1)
    console.print(
        f"The platform is up at {data.running_address()} "
        f"({time.monotonic() - started:.1f} s); logs are in {data.logs}",
        soft_wrap=True,
    )
    return up


def _sign_in(data: DataDirectory) -> str:
    """A session of the first administrator, whom the demo makes where there is nobody yet.

    Whoever may read the data folder may do so: nothing is asked, and no secret is kept.
    """
    url = data.running_address()
    with closing(Database(data.database_url, pool_size=1)) as database:
        link = owner_link(database, url=url, actor=ACTOR)
        first = ensure_link(database, url=url, path=data.first_start) if link is None else None
    with Trainyard(url, token="") as nobody:
        if link is not None:
            return sessions.sign_in_by_link(nobody.connection, link.secret).secret
        if first is None:
            raise DemoFailed(
                "No administrator is enabled in this folder. Name another folder with --data."
            )
        [secret] = parse_qs(urlsplit(first).query)["secret"]
        return sessions.start_first(nobody.connection, secret, _user_name()).secret


def _user_name() -> str:
    """The login name of this machine's user, as far as Trainyard allows its letters."""
    name = re.sub(r"[^a-z0-9_.-]", "", getpass.getuser().lower())[:32]
    return name if re.match(r"[a-z]", name) else "owner"


def _wait_for_node(client: Trainyard, up: subprocess.Popen[bytes] | None) -> None:
    deadline = time.monotonic() + UP_DEADLINE_S
    while not any(node.state == "ready" and node.reachable for node in client.nodes.list()):
        if time.monotonic() > deadline or (up is not None and up.poll() is not None):
            raise DemoFailed("No node reported in time. See the worker's log in the data folder.")
        time.sleep(0.1)


def _leave_a_way_in(
    data: DataDirectory, up: subprocess.Popen[bytes] | None, console: Console
) -> None:
    """Print a link that signs in, and on a terminal keep the platform up; else say how."""
    if up is not None and not sys.stdout.isatty():
        console.print(
            f"\nEverything is kept in {data.path}. `trainyard up{data.option}` continues with "
            f"it; `trainyard login-link{data.option}` prints a link that signs you in.",
            soft_wrap=True,
        )
        return
    with closing(Database(data.database_url, pool_size=1)) as database:
        link = owner_link(database, url=data.running_address(), actor=ACTOR)
    assert link is not None
    console.print(f"\nThe dashboard stays up. Sign in as {link.name}, once, within an hour:")
    # Whole and on one line: it is there to be clicked on.
    console.print(link.url, soft_wrap=True, markup=False, highlight=False)
    if up is None:
        return
    with suppress(KeyboardInterrupt):
        console.print(f"Ctrl-C stops everything; `trainyard up{data.option}` continues with it.")
        up.wait()
    console.print()


def _stop(up: subprocess.Popen[bytes], console: Console) -> None:
    if up.poll() is not None:
        return
    with console.status("Stopping the platform ..."):
        up.send_signal(signal.SIGINT)
        try:
            up.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            up.kill()
