"""Two programs of two owners for one node: one minds its own things, the other is after them.

Run as jobs' scripts: `neighbours.py keep SECRET` and `neighbours.py spy SECRET PORT`. Standard
library only.
"""

import ctypes
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

IPC_CREAT, KEY, SIZE = 0o1000, 0x5EC7E7, 4096
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p


def keep(secret: str) -> None:
    """Hold the secret wherever a program may hold one, until `finish` is in the run's folder; then
    tell what has become of it, and how many steps of work were done."""
    places = [Path("/tmp/mine"), Path("/dev/shm/mine"), Path(os.environ["TRAINYARD_OUTPUT"], "m")]
    for place in places:
        place.write_text(secret)
    segment = libc.shmget(KEY, SIZE, IPC_CREAT | 0o666)
    libc.memmove(ctypes.c_void_p(libc.shmat(segment, None, 0)), secret.encode(), len(secret))
    server = socket.create_server(("127.0.0.1", 0))
    asked: list[object] = []
    threading.Thread(target=lambda: asked.append(server.accept()), daemon=True).start()
    sys.stdout.write(f"port {server.getsockname()[1]}\n")
    sys.stdout.flush()
    steps = 0
    while not Path(os.environ["TRAINYARD_RUN"], "finish").exists():
        sum(number * number for number in range(20_000))
        steps += 1
    lost = [str(place) for place in places if place.read_text() != secret]
    if ctypes.string_at(libc.shmat(segment, None, 0), len(secret)).decode() != secret:
        lost.append("shared memory")
    told = {"lost": lost, "asked": len(asked), "steps": steps, "cpus": cpus()}
    sys.stdout.write(json.dumps(told))


def cpus() -> list[int]:
    """The processors of this process, after it has asked for all."""
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    except OSError:
        sys.stderr.write("affinity is denied\n")
    return sorted(os.sched_getaffinity(0))


def spy(secret: str, port: int) -> None:
    """Look for the secret, knock at every door, signal every process but the own ones."""
    found = {
        "read": sorted({where for where, text in readable() if secret.encode() in text}),
        "segments": Path("/proc/sysvipc/shm").read_text().count("\n") - 1,
        "others": [pid for pid in range(2, 1 << 15) if pid != os.getpid() and reaches(pid)],
        "ports": [each for each in {port, *range(1, 4096)} if answers(each)],
        "cpus": cpus(),
        "gone": time.monotonic(),
    }
    sys.stdout.write(json.dumps(found))


def readable() -> Iterator[tuple[str, bytes]]:
    """Every file that may hold something of another program, with its text but for the own."""
    own = {str(os.getpid()), "self", "thread-self", "1"}
    files = [f"/proc/{pid}/{name}" for pid in os.listdir("/proc") if pid.isdigit()
             and pid not in own for name in ("environ", "cmdline", "maps")]  # fmt: skip
    for top in ("/tmp", "/dev/shm", "/job", "/dev/mqueue", "/run", "/var/tmp", "/home"):
        for folder, _, names in os.walk(top):
            if not folder.startswith((sys.prefix, sys.base_prefix)):  # Python is nobody's
                files += [f"{folder}/{name}" for name in names]
    segment = libc.shmget(KEY, SIZE, 0)
    if segment >= 0:
        yield "shared memory", ctypes.string_at(libc.shmat(segment, None, 0), SIZE)
    for file in files:
        text = tried(lambda file=file: first_mib(file))  # type: ignore[misc]
        if isinstance(text, bytes):
            yield file, text


def first_mib(file: str) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(1 << 20)


def reaches(pid: int) -> bool:
    """Whether a signal that ends a process finds this one."""
    return tried(lambda: os.kill(pid, 9)) is None


def answers(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


def tried(act: Callable[[], object]) -> object:
    try:
        return act()
    except OSError as error:
        return error


if __name__ == "__main__":
    if sys.argv[1] == "keep":
        keep(sys.argv[2])
    else:
        spy(sys.argv[2][::-1], int(sys.argv[3]))  # backwards, so as not to find its own argument
