"""A terminal of a workbench in one's own terminal: keys there, output here, until one leaves."""

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from trainyard.cli.output import note
from trainyard.cli.workbenches.clock import next_change, rings_between, title_at
from trainyard.client import Trainyard
from trainyard.errors import ApiError, ConnectionFailed, UnexpectedAnswer
from trainyard.inert import one_line
from trainyard.resources.workbenches import Terminal

LEAVE = b"\x1d"  # Ctrl-]
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
AGAIN = (502, 503, 504)


@dataclass
class Sitting:
    """One person in front of one terminal, through as many connections as it takes."""

    client: Trainyard
    workbench_id: str
    name: str
    title: str

    def __post_init__(self) -> None:
        self.terminal: Terminal | None = None
        self.offset: int | None = None
        self.has_left = False
        self.end = ""
        """Reason of the end, if the user has not left."""
        self.told_at = datetime.now(UTC)
        self.woken, self.wake = os.pipe()

    def run(self) -> str:
        """Sit there until the user leaves or the shell ends; return the reason, empty if the user
        has left. Raises ApiError if the server refuses at first."""
        self._connect()
        with _raw_terminal(), self._following_the_window():
            output = threading.Thread(target=self._show_all, daemon=True)
            output.start()
            self._type_all(output)
        return "" if self.has_left else self.end

    def _connect(self) -> None:
        rows, columns = _window()
        terminal = self.client.workbenches.open_terminal(
            self.workbench_id, self.name, rows=rows, columns=columns, offset=self.offset
        )
        if terminal.is_new or self.offset is None:
            self.offset = terminal.offset
        self.terminal = terminal
        self._tell_time(is_new=True)

    def _show_all(self) -> None:
        """Show the terminal, through broken connections, until its end."""
        while True:
            terminal = self.terminal
            assert terminal is not None
            for piece in terminal:
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
                self.offset = terminal.offset
            if self.has_left or terminal.end.is_over:
                self.end = terminal.end.reason or "the connection has ended"
                break
            if not self._reconnect():
                break
        os.write(self.wake, b"o")

    def _reconnect(self) -> bool:
        """Connect again; return False if that will not succeed any more."""
        pause_s = SHORTEST_PAUSE_S
        _set_title(f"{self.title} · connection lost, trying again")
        while not self.has_left:
            try:
                self._connect()
                return True
            except ApiError as error:
                if error.status not in AGAIN:
                    self.end = str(error)
                    return False
            except (ConnectionFailed, UnexpectedAnswer):
                pass
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return False

    def _type_all(self, output: threading.Thread) -> None:
        """Send the keys, until the user leaves or the output has ended."""
        keyboard = sys.stdin.fileno()
        while output.is_alive():
            ends_at = None if self.terminal is None else self.terminal.ends_at
            wait_s = next_change(ends_at, datetime.now(UTC)).total_seconds()
            ready, _, _ = select.select([keyboard, self.woken], [], [], wait_s)
            self._tell_time()
            if self.woken in ready:
                return
            if keyboard not in ready:
                continue
            keys = os.read(keyboard, 4096)
            if LEAVE in keys or not keys:
                self.has_left = True
                if self.terminal is not None:
                    self.terminal.close()
                return
            if self.terminal is not None:
                self.terminal.type(keys)

    def _tell_time(self, *, is_new: bool = False) -> None:
        ends_at = None if self.terminal is None else self.terminal.ends_at
        now = datetime.now(UTC)
        if is_new or now - self.told_at >= timedelta(seconds=1):
            _set_title(title_at(self.title, ends_at, now))
            if rings_between(ends_at, self.told_at, now):
                _say_to_terminal("\a")
            self.told_at = now

    @contextmanager
    def _following_the_window(self) -> Iterator[None]:
        def resized(*_: object) -> None:
            if self.terminal is not None:
                self.terminal.resize(*_window())

        before = signal.signal(signal.SIGWINCH, resized)
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, before)


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Have every key, Ctrl-C too, until the end."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setraw(keyboard)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        # What a program inside may have left on: other screens, hidden cursors, mouse, paste.
        _say_to_terminal("\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1006l\x1b[?2004l\x1b[0m")
        _set_title("")
        _say_to_terminal("\r\n")


def _window() -> tuple[int, int]:
    """Return rows and columns of this terminal; some programs that stand in for one say 0."""
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return rows or 24, columns or 80


def _set_title(text: str) -> None:
    _say_to_terminal(f"\x1b]0;{one_line(text)}\a")


def _say_to_terminal(text: str) -> None:
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def sit(client: Trainyard, workbench_id: str, name: str, *, title: str) -> None:
    """Sit in front of a terminal of a workbench."""
    why = Sitting(client, workbench_id, name, title).run()
    if not why:
        note(f"You have left; it goes on. Back: trainyard workbench open {workbench_id}")
    else:
        note(f"{why[0].upper()}{why[1:].removesuffix('.')}.")
