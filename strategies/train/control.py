"""Requests to a running attempt: control.json, and SIGTERM as a stop."""

import os
import signal
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from strategies.plan.run_directory import Action, read_control


class ControlWatch:
    """Reader of requests, once a step: one stat of control.json on the first rank, a flag on every
    rank.

    Ranks must not act on it alone: each request goes into a reduction first.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.sequence = 0
        self.seen: tuple[int, int] | None = None
        self.terminated = False

    def catch_signals(self) -> None:
        """Turn SIGTERM and SIGINT into a request to stop."""
        signal.signal(signal.SIGTERM, self.terminate)
        signal.signal(signal.SIGINT, self.terminate)

    def release_signals(self) -> None:
        """Let SIGTERM and SIGINT end the process at once: nothing is left to save."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def terminate(self, number: int, frame: FrameType | None) -> None:
        self.terminated = True

    def is_asked_to_stop(self) -> bool:
        """Return True if a stop is pending that `look` has not returned yet.

        For the first rank only.
        """
        if self.terminated or self.path is None:
            return self.terminated
        try:
            control = read_control(self.path)
        except ValidationError:
            return False
        if control is None or control.sequence <= self.sequence:
            return False
        return control.action is Action.STOP

    def look(self) -> Action | None:
        """Return the newest request that has not been returned yet."""
        if self.terminated:
            return Action.STOP
        if self.path is None:
            return None
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        version = (found.st_mtime_ns, found.st_ino)
        if version == self.seen:
            return None
        self.seen = version
        try:
            control = read_control(self.path)
        except ValidationError as error:
            print(f"control.json is not a valid request and was ignored: {error}", flush=True)  # noqa: T201
            return None
        if control is None or control.sequence <= self.sequence:
            return None
        self.sequence = control.sequence
        return control.action
