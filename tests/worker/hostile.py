"""Tries everything that a script must not get, and prints what came of it as one JSON object.

Run as a job's script: `hostile.py FILE... -- HOST:PORT ABSTRACT_SOCKET`. Standard library only.
"""

import ctypes
import fcntl
import importlib.util
import json
import os
import socket
import sys
import termios
from collections.abc import Callable
from pathlib import Path

found: dict[str, object] = {}
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PTRACE_ATTACH, BPF = 16, {"x86_64": 321, "aarch64": 280}


def tried(name: str, act: Callable[[], object]) -> None:
    """What `act` gives, or how it is refused."""
    try:
        found[name] = act()
    except BaseException as error:
        found[name] = f"{type(error).__name__}: {error}"


def call(result: int) -> str:
    """How a call of the C library ended."""
    return "ok" if result >= 0 else os.strerror(ctypes.get_errno())


def connect(family: int, address: object) -> str:
    with socket.socket(family) as client:
        client.settimeout(2)
        client.connect(address)  # type: ignore[arg-type]
        return "connected"


def write(path: str) -> str:
    Path(path).write_text("x")
    return "written"


def main() -> None:
    at = sys.argv.index("--")
    files, (address, name) = sys.argv[1:at], sys.argv[at + 1 :]
    host, _, port = address.rpartition(":")
    output, run = Path(os.environ["TRAINYARD_OUTPUT"]), Path(os.environ["TRAINYARD_RUN"])
    found["environment"] = dict(os.environ)
    found["uid"] = os.getuid()
    found["processes"] = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    for path in files:
        tried(f"read {path}", lambda path=path: Path(path).read_text()[:50])  # type: ignore[misc]
    tried("read shadow", lambda: Path("/etc/shadow").read_text()[:50])
    tried("first process", lambda: Path("/proc/1/environ").read_text())
    tried("homes", lambda: os.listdir("/home") + os.listdir("/root/.ssh"))
    for module in ("core", "worker", "api", "strategies", "trainyard.transport.connection"):
        tried(f"import {module}", lambda module=module: str(importlib.util.find_spec(module)))  # type: ignore[misc]
    tried("interfaces", lambda: [name for _, name in socket.if_nameindex()])
    tried("api", lambda: connect(socket.AF_INET, (host, int(port))))
    tried("internet", lambda: connect(socket.AF_INET, ("192.0.2.1", 80)))
    tried("abstract socket", lambda: connect(socket.AF_UNIX, f"\0{name}"))
    tried("mount", lambda: call(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)))
    tried("user namespace", lambda: call(libc.unshare(CLONE_NEWUSER)))
    tried("network namespace", lambda: call(libc.unshare(CLONE_NEWNET)))
    tried("become root", lambda: os.setresuid(0, 0, 0) if os.getuid() else os.mknod("/tmp/sda"))
    tried("trace", lambda: call(libc.ptrace(PTRACE_ATTACH, 1, None, None)))
    tried("bpf", lambda: call(libc.syscall(BPF[os.uname().machine], 0, None, 0)))
    tried("write system", lambda: write("/usr/lib/x.py"))
    tried("write python", lambda: write(f"{sys.prefix}/x.py"))
    tried("write root", lambda: write("/x"))
    tried("cgroup", lambda: write("/sys/fs/cgroup/cgroup.procs"))
    tried("terminal", lambda: fcntl.ioctl(0, termios.TIOCSTI, b"x"))
    tried("kill all", lambda: os.kill(-1, 0))
    tried("swap log", lambda: os.replace("/tmp", "/job/logs/0.out"))
    tried("unlink log", lambda: os.unlink("/job/logs/0.out"))
    # What the worker reads later must not lead it anywhere.
    (output / "fine.txt").write_text("fine")
    for number, path in enumerate(files):
        (output / f"link-{number}").symlink_to(path)
    (output / "folder").symlink_to("/")
    os.mkfifo(output / "pipe")
    (run / "metrics.jsonl").symlink_to(files[0])
    (run / "events.out.tfevents.1").symlink_to(files[0])
    for forged in ("exit.json", "result.json", "plan.json", "control.json"):
        (run / forged).write_text('{"outcome": "succeeded"}')
    deep = run / "deep"
    for _ in range(1200):  # deeper than Python recurses
        deep.mkdir()
        os.chdir(deep)
        deep = Path("d")
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
