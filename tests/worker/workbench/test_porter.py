"""The porter of a workbench, as the process that it is in the sandbox, without one around it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from core.wire.frames import (
    MAX_FRAME,
    WINDOW,
    Frame,
    FrameKind,
    pack,
    pack_credit,
    pack_resize,
    unpack,
)
from worker.workbench.placing import place_porter

PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]);"
    "from worker.workbench.porter import main; sys.exit(main(int(sys.argv[2]), sys.argv[3:]))"
)
WITHIN_S = 20.0
SAVES_AT_ITS_END = (
    'sh -c \'trap "echo bye > ~/saved; exit" HUP; echo re""ady; while :; do sleep 0.1; done\'\n'
)


class Gate:
    """The other end of a porter's link."""

    def __init__(self, folder: Path, server: Sequence[str] = (), **variables: str) -> None:
        place_porter(folder / "porter")
        (folder / "home").mkdir()
        self.link, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.settimeout(WITHIN_S)
        with inside:
            self.process = subprocess.Popen(
                [*(sys.executable, "-I", "-S", "-c", PROGRAM), str(folder / "porter"),
                 str(inside.fileno()), *server],
                env={
                    **{"HOME": str(folder / "home"), "PATH": os.environ["PATH"], "PS1": "$ "},
                    **variables,
                },
                pass_fds=[inside.fileno()],
            )  # fmt: skip

    def close(self) -> None:
        self.link.close()
        self.process.kill()
        self.process.wait()

    def say(self, frame: bytes) -> None:
        self.link.send(frame)

    def hear_any(self) -> Frame:
        """The next frame."""
        return unpack(self.link.recv(MAX_FRAME))

    def hear(self, stream: int) -> Frame:
        """The next frame of a stream."""
        while True:
            frame = self.hear_any()
            if frame.stream == stream:
                return frame

    def open(self, stream: int, **wanted: Any) -> dict[str, Any]:
        """Open a stream to terminal 1; what the porter says about it."""
        asked = {"terminal": "1", "rows": 24, "columns": 80, "offset": None, **wanted}
        self.say(pack(FrameKind.OPEN, stream, json.dumps(asked).encode()))
        frame = self.hear(stream)
        return {"kind": frame.kind, **json.loads(frame.content)}

    def type(self, stream: int, text: str) -> None:
        self.say(pack(FrameKind.DATA, stream, text.encode()))

    def wait_for(self, stream: int, text: str) -> bytes:
        """All that the stream shows until it has shown this text."""
        shown = b""
        while text.encode() not in shown:
            frame = self.hear(stream)
            assert frame.kind is FrameKind.DATA, frame
            shown += frame.content
            self.say(pack_credit(stream, len(frame.content)))
        return shown


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    yield gate
    gate.close()


def test_a_shell_outlives_its_connections_and_goes_on_where_one_left_off(gate: Gate) -> None:
    assert gate.open(1) == {"kind": FrameKind.OPENED, "offset": 0, "is_new": True}
    gate.type(1, "A=kept; echo he''re; tty\n")
    seen = len(gate.wait_for(1, "/dev/"))
    gate.say(pack(FrameKind.HELLO, 99))  # another connection
    assert gate.hear(99).kind is FrameKind.HELLO
    gate.type(1, "echo to nobody\n")  # of a stream that is gone
    opened = gate.open(2, offset=seen)
    assert (opened["is_new"], opened["offset"]) == (False, seen)
    gate.type(2, "echo =$A=\n")
    shown = gate.wait_for(2, "=kept=")
    assert b"to nobody" not in shown
    assert b"here" not in shown
    gate.open(3)
    assert b"here" in gate.wait_for(3, "=kept=")


def test_a_window_has_the_size_of_who_looks_last(gate: Gate) -> None:
    gate.open(1, rows=30, columns=100)
    gate.type(1, "stty size\n")
    gate.wait_for(1, "30 100")
    gate.say(pack_resize(1, 41, 133))
    gate.type(1, "stty size\n")
    gate.wait_for(1, "41 133")


def test_no_more_is_sent_than_credit_allows_and_the_program_waits_meanwhile(gate: Gate) -> None:
    gate.open(1)
    gate.type(1, "head -c 1000000 /dev/zero | tr '\\0' a; echo; echo e''nd\n")
    arrived = 0
    while arrived < WINDOW:
        arrived += len(gate.hear(1).content)
    assert gate.open(2, terminal="other")["is_new"]  # is not held up by that
    gate.link.settimeout(0.5)
    with pytest.raises(TimeoutError):  # silence: the program is held up, nothing is heaped up
        gate.hear(1)
    gate.link.settimeout(WITHIN_S)
    gate.say(pack_credit(1, arrived))
    total = len(gate.wait_for(1, "end"))
    assert arrived + total > 1_000_000


def test_a_viewer_who_stops_reading_holds_up_nobody_else(gate: Gate) -> None:
    gate.open(1)
    gate.open(2)
    gate.type(2, "head -c 1000000 /dev/zero | tr '\\0' a; echo; echo e''nd\n")
    shown = gate.wait_for(2, "end")  # stream 1 gives no credit
    assert len(shown) > 1_000_000


def test_the_end_of_a_shell_ends_its_streams_and_the_next_one_is_new(gate: Gate) -> None:
    gate.open(1)
    gate.type(1, "exit 7\n")
    while (frame := gate.hear(1)).kind is FrameKind.DATA:
        pass
    assert frame.kind is FrameKind.CLOSE
    assert "ended" in json.loads(frame.content)["why"]
    assert gate.open(2)["is_new"] is True


@pytest.mark.parametrize("wanted", [b"", b"[]", b"{}", b'{"terminal": "1", "rows": "x"}', b"\xff"])
def test_nonsense_opens_nothing_and_says_so(gate: Gate, wanted: bytes) -> None:
    gate.say(pack(FrameKind.OPEN, 5, wanted))
    frame = gate.hear(5)
    assert frame.kind is FrameKind.CLOSE
    assert "does not know what to open" in json.loads(frame.content)["why"]
    gate.say(b"\xffnot a frame")
    gate.say(pack(FrameKind.CREDIT, 5, b"1"))
    assert gate.open(6)["is_new"] is True


def test_the_end_of_a_shell_that_was_only_just_started_ends_nobody_else(gate: Gate) -> None:
    """They share a process group with this test, which would get SIGHUP too."""
    for number in range(1, 9):
        gate.open(number, terminal=str(number))
    gate.link.close()
    assert gate.process.wait(timeout=WITHIN_S) == 0


def test_sigterm_hangs_up_so_that_programs_may_save(gate: Gate, tmp_path: Path) -> None:
    gate.open(1)
    saved = tmp_path / "home" / "saved"
    gate.type(1, SAVES_AT_ITS_END)
    gate.wait_for(1, "ready")
    began = time.monotonic()
    gate.process.send_signal(signal.SIGTERM)
    assert gate.process.wait(timeout=WITHIN_S) == 0
    assert saved.read_text() == "bye\n"
    assert time.monotonic() - began < 5


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """File that the porter's command after its server makes."""
    return tmp_path / "saved"


def test_a_server_that_was_killed_is_told_by_its_signal_once_its_work_is_saved(
    tmp_path: Path, saved: Path
) -> None:
    server = ["sh", "-c", "kill -9 $$"]
    gate = Gate(tmp_path, server, TRAINYARD_AFTER_SERVER=json.dumps(["touch", str(saved)]))
    assert gate.process.wait(WITHIN_S) == 128 + signal.SIGKILL
    assert saved.exists()
    gate.close()


def test_what_a_server_has_not_written_is_saved_although_it_ends_in_good_order(
    tmp_path: Path, saved: Path
) -> None:
    ready = tmp_path / "ready"
    waits = f"trap 'exit 0' TERM; touch {ready}; while :; do sleep 0.1; done"
    server = ["sh", "-c", waits]
    gate = Gate(tmp_path, server, TRAINYARD_AFTER_SERVER=json.dumps(["touch", str(saved)]))
    deadline = time.monotonic() + WITHIN_S
    while not ready.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    gate.process.terminate()
    assert gate.process.wait(WITHIN_S) == 0
    assert saved.exists()
    gate.close()
