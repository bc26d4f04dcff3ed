"""The command line as a process of its own: Ctrl-C, pipes, a terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.client import documents as d
from tests.client.fake_server import FakeServer, as_json, listed, streamed
from tests.client.scripted import JOB, everything

MAIN = "from trainyard.cli import main; main()"


def hear_ctrl_c() -> None:
    """A shell's background job, such as a whole test run, ignores SIGINT and hands that down."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def process(*args: str, url: str) -> Iterator["subprocess.Popen[str]"]:
    """`python -m trainyard.cli ...` as a person starts it."""
    started = subprocess.Popen(
        [sys.executable, "-c", MAIN, *args],
        env={**os.environ, "TRAINYARD_URL": url, "TRAINYARD_TOKEN": "t"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_ctrl_c,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


@pytest.mark.parametrize("command", ["follow", "logs"])
def test_ctrl_c_stops_watching_and_not_the_job(server: FakeServer, command: str) -> None:
    release = threading.Event()
    everything(server)
    server.answer(f"GET {JOB}", as_json(d.running(1, 2.0)))
    server.answer(f"GET {JOB}/stream", streamed(("1", "job", d.running(1, 2.0)), hold=release))
    args = [command, d.JOB_ID] if command == "follow" else [command, d.JOB_ID, "-f"]
    awaited = f"GET {JOB}/stream" if command == "follow" else f"GET {JOB}/logs"
    with process(*args, url=server.url) as started:
        server.wait_for(awaited, 1)
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=30)
    release.set()
    assert started.returncode == 130, err
    assert "the job continues" in err
    assert "Traceback" not in out + err
    assert {asked.method for asked in server.asked} == {"GET"}


def test_a_reader_that_goes_away_is_no_traceback(server: FakeServer) -> None:
    everything(server)
    many = [{**d.LOG_LINE, "line": i, "text": "x" * 200} for i in range(4000)]
    server.answer(f"GET {JOB}/logs", as_json({**d.LOGS, "lines": many}))
    with process("logs", d.JOB_ID, url=server.url) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.readline()
        started.stdout.close()
        started.wait(30)
        assert "Traceback" not in started.stderr.read()


def on_a_terminal(*args: str, url: str, columns: int = 80) -> str:
    """What a person with an 80 column terminal gets."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    environment = {**os.environ, "TRAINYARD_URL": url, "TRAINYARD_TOKEN": "t", "TERM": "xterm"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    started = subprocess.Popen(
        [sys.executable, "-c", MAIN, *args],
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    got = b""
    with suppress(OSError):  # EIO: the last writer is gone
        while select.select([ours], [], [], 30)[0]:
            got += os.read(ours, 65536)
    os.close(ours)
    started.kill()
    started.wait()
    return got.decode()


def test_on_a_narrow_terminal_ids_are_short_and_no_text_is_cut(server: FakeServer) -> None:
    everything(server)
    reason = "Waits for job_01k9 on this-machine, which ends at 15:55 at the latest."
    server.answer("GET /v1/jobs", listed([d.job(name="a-job-with-a-long-name", reason=reason)]))
    shown = on_a_terminal("jobs", url=server.url)
    for part in (d.JOB_ID[-6:], "a-job-with-a-long-name", "queued", "0/400", reason):
        assert part in shown


def test_nodes_fit_a_terminal_of_80_columns(server: FakeServer) -> None:
    node = {**d.NODE, "name": "a-node-01", "users": ["ada"], "job": d.JOB_ID}
    server.answer("GET /v1/nodes", listed([node]))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal("nodes", url=server.url))
    assert max(map(len, shown.splitlines())) <= 80
    for part in ("a-node-01", "ada", d.JOB_ID[-6:]):
        assert part in shown
    assert d.JOB_ID not in shown


def test_on_a_terminal_the_display_ends_with_the_summary(server: FakeServer) -> None:
    everything(server)
    shown = on_a_terminal("follow", d.JOB_ID, url=server.url)
    assert "\x1b[?25l" in shown  # the cursor was hidden while the display ran
    assert shown.rindex("\x1b[?25h") < shown.index("gpt-ddp succeeded")
