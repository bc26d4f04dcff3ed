"""Small process of the worker that forks shims, so that none is the worker's own child.

It reads one folder per line from its standard input and forks a shim for it. When the worker is
gone its input ends, and so does it; the shims continue.
"""

import os
import select
import signal
import sys
import traceback
from pathlib import Path

from worker import shim


def serve() -> None:
    """Fork a shim for every line, until the input ends. Must run with one thread."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pending = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            reap()
        if 0 not in ready:
            continue
        received = os.read(0, 65536)
        if not received:
            return
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            fork_shim(Path(os.fsdecode(line)), inherited=(woken, wake))


def fork_shim(attempt: Path, *, inherited: tuple[int, ...]) -> None:
    """Fork; the child becomes the shim and never returns."""
    if os.fork() != 0:
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for descriptor in inherited:
            os.close(descriptor)
        code = shim.run(attempt)
    except BaseException:  # the edge of the shim's process: record, then end
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def reap() -> None:
    """Reap shims that have ended; their results are in their exit.json."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


if __name__ == "__main__":
    serve()
