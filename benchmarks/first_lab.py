"""An instructor's way from an empty machine to the grades of the first lab, timed.

`python -m benchmarks.first_lab` clones this repository into an empty folder with a home of its own,
types there every command of docs/guides/instructor.md as it stands (the first makes the virtual
environment), and does in headless Chromium what the guide does in a browser: the administrator's
account, and as a student the lab from the mailed invitation to the report. It prints the seconds of
each step. They are those of a machine and a script that acts as soon as it can: what the platform
takes, not what a person reads and decides.
"""

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests import chromium
from tests.running import wait_for
from tests.scheduler.sinks import MailServer, mail_server
from tests.spine.guides import PASSWORD, ROOT, STUDENT, Instructor, commands, enter, walk

ADMIN = "ada"
FLAGS = ["--disable-gpu", "--disable-background-networking", "--no-first-run"]
INSTALL_WITHIN_S, START_WITHIN_S = 1800.0, 120.0
FIRST_START = re.compile(r"http\S+/first-start\?\S+")
JOB_MEMORY_GIB = "2"  # as the guide says
STEPS = (
    "clone",
    "make up: the virtual environment",
    "make up: ready, with the link",
    "sign in",
    "nodes",
    "the course, with its people",
    "will it be enough?",
    "try it; send the links",
    "a student: invitation to report",
    "roster, exception",
    "grades",
)


class Clock:
    """The seconds of each step, in the order of STEPS."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._since = time.monotonic()

    def lap(self) -> None:
        """End a step, and print what it took."""
        now = time.monotonic()
        self.seconds.append(now - self._since)
        self._since = now
        step = STEPS[len(self.seconds) - 1]
        sys.stdout.write(f"{self.seconds[-1]:7.1f} s  {step}\n")
        sys.stdout.flush()


def main() -> int:
    """Do it all once; return 1 without a Chromium."""
    if chromium.find() is None:
        sys.stderr.write("No Chromium or Chrome was found; `make test` installs one.\n")
        return 1
    with tempfile.TemporaryDirectory() as folder, mail_server() as mail:
        clock = Clock()
        place, home = Path(folder) / "trainyard", Path(folder) / "home"
        home.mkdir()
        run(["git", "clone", "--quiet", "--no-local", str(ROOT), str(place)])
        clock.lap()
        environment = environment_of(place, home, mail)
        with up(place, environment) as output, browser() as page:
            wait_for((place / ".venv" / ".installed").exists, what="pip", within_s=INSTALL_WITHIN_S)
            clock.lap()
            link = wait_for(
                lambda: FIRST_START.search(output.read_text()),
                what="the link",
                within_s=START_WITHIN_S,
            )
            clock.lap()
            follow(page, link[0], Instructor(place, environment), mail, clock)
    total = sum(clock.seconds)
    sys.stdout.write(f"{total:7.1f} s  in all: {total / 60:.1f} of the guide's 60 minutes\n")
    return 0


def follow(page: Page, link: str, instructor: Instructor, mail: MailServer, clock: Clock) -> None:
    """Follow the guide from the link of the first start to the grades."""
    enter(page, link, ADMIN)
    url = link.partition("/first-start")[0]
    sign_in(instructor, url)
    clock.lap()
    wait_for(
        lambda: "ready" in instructor.follow("3. Nodes", first_day=""),
        what="the node",
        every_s=0.5,
    )
    clock.lap()
    day = (datetime.now(UTC) - timedelta(days=7)).date().isoformat()
    instructor.follow("4. The course", first_day=day)
    clock.lap()
    instructor.follow("5. Will it be enough?", first_day=day)
    clock.lap()
    instructor.follow("6. Try it", first_day=day)
    instructor.follow("7. Send the links", first_day=day)
    clock.lap()
    wait_for(lambda: bool(mail.mails), what="the invitation", within_s=30)
    found = re.search(r"http\S+/invite\?secret=\S+", mail.mails[0].get_content())
    assert found is not None
    page.context.clear_cookies()
    walk(page, found[0])
    clock.lap()
    assert STUDENT in instructor.follow("On the day", first_day=day)
    clock.lap()
    instructor.follow("Grades", first_day=day)
    assert (instructor.folder / "results" / STUDENT / "results.json").is_file()
    clock.lap()


def environment_of(place: Path, home: Path, mail: MailServer) -> dict[str, str]:
    """Return the environment of a person who has nothing of ours, and of the platform."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAINYARD_")}
    for name in ("VIRTUAL_ENV", "PYTHONPATH", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        kept.pop(name, None)
    return {
        **kept,
        "HOME": str(home),
        "PATH": f"{place / '.venv' / 'bin'}:{kept['PATH']}",
        "TRAINYARD_JOB_MEMORY_GIB": JOB_MEMORY_GIB,
        "TRAINYARD_SMTP_HOST": "127.0.0.1",
        "TRAINYARD_SMTP_PORT": str(mail.port),
        "TRAINYARD_SMTP_SECURITY": "none",
    }


@contextmanager
def up(place: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Type the command that starts the platform; yield the file with what it prints."""
    [command] = commands("1. Start", kind="up")
    output = place.parent / "up.out"
    with output.open("w") as file:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=place,
            env=dict(environment),
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield output
    except BaseException:
        sys.stderr.write(output.read_text())
        raise
    finally:
        os.killpg(process.pid, signal.SIGINT)  # Ctrl-C
        process.wait(timeout=120)


@contextmanager
def browser() -> Iterator[Page]:
    """Yield a page of a browser that nobody has signed in with."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        chrome = playwright.chromium.launch(
            executable_path=chromium.find(), args=[*FLAGS, *sandbox]
        )
        page = chrome.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(60_000)
        yield page
        chrome.close()


def sign_in(instructor: Instructor, url: str) -> None:
    """Type the commands that sign the command line in, at a terminal that asks for a password."""
    *before, command = commands("2. Sign in", kind="login")
    line = "; ".join([*before, f"{command} {url}"])
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(instructor.folder)
        os.execvpe("bash", ["bash", "-c", line], dict(instructor.environment))
    said = ""
    for asked, answer in (("Name at", ADMIN), ("Password", PASSWORD)):
        while asked not in said:
            said += os.read(terminal, 1024).decode()
        os.write(terminal, f"{answer}\n".encode())
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, said


def run(command: list[str]) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
