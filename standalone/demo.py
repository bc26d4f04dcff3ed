"""`trainyard demo`: the platform's main job, through the public client, as a newcomer sees it."""

import getpass
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
from rich.console import Console

from standalone.data_directory import DataDirectory
from trainyard import Trainyard, TrainyardError, sessions
from trainyard.progress import follow
from trainyard.summary import show_summary

EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt-ddp.yaml"
UP_DEADLINE_S = 120.0
OWNER_TOKEN_DAYS = 366  # the longest that the API gives
STOP_DEADLINE_S = 120.0


class DemoFailed(Exception):
    """The demo could not be shown; the message says why and what to do."""


def run(data: DataDirectory) -> int:
    """Show the demo; returns the exit code. Uses a running platform, else starts one."""
    console = Console()
    data.create()
    up = None if _is_running(data) else _start(data, console)
    try:
        client = Trainyard(base_url=data.running_address(), token=_owner_token(data))
        _wait_for_node(client, up)
        job = client.jobs.create(EXAMPLE)
        console.print(f"Submitted [bold]{job.name}[/] as {job.id}: {data.running_address()}/jobs")
        finished = follow(client, job.id, console)
        show_summary(finished.job, console, losses=finished.losses)
        if up is not None and sys.stdout.isatty():
            _stay_up(client, console)
        return 0 if finished.succeeded else 1
    except (DemoFailed, TrainyardError) as error:
        console.print(str(error), markup=False)
        return 1
    finally:
        if up is not None:
            _stop(up, console)


def _is_running(data: DataDirectory) -> bool:
    address = data.running_address()
    if not address:
        return False
    try:
        return httpx2.get(f"{address}/readyz", timeout=2).status_code == 200
    except httpx2.TransportError:
        return False


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
        f"({time.monotonic() - started:.1f} s); logs are in {data.logs}"
    )
    return up


def _owner_token(data: DataDirectory) -> str:
    """The token of the first administrator, whom the demo makes where there is none yet."""
    if data.owner_token.exists():
        return data.owner_token.read_text().strip()
    if not data.first_start.exists():
        token = os.environ.get("TRAINYARD_TOKEN", "")
        if token:
            return token
        raise DemoFailed(
            f"The platform in {data.path} has an administrator already. Sign in with "
            "`trainyard login` and submit examples/gpt-ddp.yaml, or name another folder: "
            "trainyard demo --data DIR"
        )
    secret = re.search(r"secret=([A-Za-z0-9_-]+)", data.first_start.read_text())
    assert secret is not None
    with Trainyard(data.running_address(), token="") as nobody:
        session = sessions.start_first(nobody.connection, secret[1], _user_name())
    with Trainyard(data.running_address(), token=session.secret) as owner:
        # The session ends when it is idle for half a day; the next demo may come later.
        made = owner.tokens.create("demo", scopes=["jobs"], expires_in_days=OWNER_TOKEN_DAYS)
        sessions.sign_out(owner.connection)
    data.write_private(data.owner_token, made.secret)
    return made.secret


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


def _stay_up(client: Trainyard, console: Console) -> None:
    link = sessions.login_link(client.connection)
    console.print(f"\nThe dashboard stays up: [bold]{link.url}[/]")
    console.print("(this link signs you in once, within ten minutes)  Ctrl-C stops everything.")
    try:
        signal.pause()
    except KeyboardInterrupt:
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
