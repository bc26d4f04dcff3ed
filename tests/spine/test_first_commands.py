"""The README's first commands, on a terminal and without one, end with an administrator."""

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import yaml

from tests.running import Running, wait_for
from tests.spine.jobs import spec

# Platforms start four times, and torch with them.
pytestmark = [pytest.mark.gloo, pytest.mark.slow, pytest.mark.timeout(400)]

DEMO = (
    "import sys; from pathlib import Path; from standalone import demo;"
    "from standalone.data_directory import DataDirectory;"
    "sys.exit(demo.run(DataDirectory(Path(sys.argv[1])), example=Path(sys.argv[2])))"
)
LINK = re.compile(r"^(http://127\.0\.0\.1:\d+)/login\?link=(ty_[\w-]{43})\r?$", re.MULTILINE)
WITHIN_S = 180.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others may read, as a person would have made it."""
    path = Path(tempfile.mkdtemp(prefix="ty-", dir="/tmp"))  # short: it holds a socket
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def demo(folder: Path, tmp_path: Path) -> list[str]:
    """The command of a demo that trains for a few steps only."""
    example = tmp_path / "example.yaml"
    example.write_text(yaml.safe_dump(spec(steps=3)))
    return [sys.executable, "-P", "-c", DEMO, str(folder), str(example)]


class Terminal:
    """A program on a terminal of 80 columns, and all that it has shown."""

    def __init__(self, command: list[str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.program = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def shown(self) -> str:
        """Without colours and the like."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._shown.decode(errors="replace"))

    def close(self) -> None:
        """End the program as Ctrl-C does, and kill it where that does not."""
        try:
            self.program.send_signal(signal.SIGINT)
            wait_for(
                lambda: self.program.poll() is not None,
                what=f"the end of: {self.shown}",
                within_s=WITHIN_S,
            )
        finally:
            self.program.kill()
            self.program.wait()
            self._reader.join(10)
            os.close(self._ours)

    def _read(self) -> None:
        try:
            while piece := os.read(self._ours, 4096):
                self._shown += piece
        except OSError:  # nobody has the other end any more
            return


def users_by_link(address: str, secret: str) -> list[str]:
    """Follow a link as a browser does: the page, its button, the session's cookie."""
    with httpx2.Client(base_url=address, timeout=30) as browser:
        page = browser.get("/login", params={"link": secret})
        assert f'value="{secret}"' in page.text
        pressed = browser.post("/login/link", data={"link": secret}, headers={"Origin": address})
        assert (pressed.status_code, pressed.headers["location"]) == (303, "/jobs")
        assert browser.get("/jobs").status_code == 200
        users = browser.get("/v1/users").raise_for_status().json()["data"]
    return [user["name"] for user in users]


def link_in(text: str, *, before: str = "") -> tuple[str, str]:
    found = re.search(before + r"(http://127\.0\.0\.1:\d+)/login\?link=(ty_[\w-]{43})\s", text)
    assert found is not None, text
    return found[1], found[2]


def test_after_a_demo_on_a_terminal_its_link_signs_in_and_up_goes_on(
    folder: Path, demo: list[str]
) -> None:
    terminal = Terminal(demo)
    try:

        def link() -> re.Match[str] | None:
            assert terminal.program.poll() is None, terminal.shown
            return LINK.search(terminal.shown)

        found = wait_for(link, what="a link on a line of its own", within_s=WITHIN_S)
        assert isinstance(found, re.Match)
        [name] = users_by_link(found[1], found[2])
        assert re.search(r"/jobs/job_\w+", terminal.shown)
    finally:
        terminal.close()
    assert terminal.program.returncode == 0, terminal.shown
    assert f"trainyard up --data {folder}" in terminal.shown

    platform = Running(folder)
    platform.token = "none yet"
    try:
        platform.start()
        wait_for(lambda: "Sign in as" in platform.output(), what="the way in")
        assert users_by_link(*link_in(platform.output(), before=f"Sign in as {name}, .*: ")) == [
            name
        ]
        seen = [path for path in folder.rglob("*") if path.is_socket() or path.is_file()]
        seen.remove(folder / "up.out")  # which this test has made
        assert folder / "trainyard.db" in seen
        assert [path for path in seen if others_may_read(path, folder)] == []
    finally:
        assert platform.interrupt() == 0


def others_may_read(path: Path, root: Path) -> bool:
    """Whether anybody but its owner gets to it, from `root` downwards."""
    way = [path, *path.parents]
    return all(step.stat().st_mode & 0o077 for step in way[: way.index(root) + 1])


def test_a_demo_without_a_terminal_says_how_to_get_in(folder: Path, demo: list[str]) -> None:
    ran = subprocess.run(demo, capture_output=True, text=True, timeout=WITHIN_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = f"`trainyard login-link --data {folder}` prints a link that signs you in"
    assert said in ran.stdout
    command = "import typer; from standalone.commands import login_link; typer.run(login_link)"
    platform = Running(folder)
    platform.token = "none yet"
    try:
        platform.start()
        link = subprocess.run(
            [sys.executable, "-P", "-c", command, "--data", str(folder)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert len(users_by_link(*link_in(link.stdout))) == 1
    finally:
        assert platform.interrupt() == 0
