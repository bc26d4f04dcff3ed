"""`python -m benchmarks.workbenches`: a key's echo in a terminal, and the start of workbenches.

Everything runs on the whole platform as `trainyard up` starts it. Keys go through a WebSocket of
the API, its tunnel, the carrier and the porter to a shell in the sandbox and back; in turn with
them, keys to the same program on a terminal of this machine, which is what is unavoidable, and
through OpenSSH to this machine, if it has a server. Goal: the way adds at most 1 ms (median) and 10
ms (99th percentile) to SSH.
"""

import os
import pty
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2

from core.base.clock import utc_now
from tests.running import Running, own_port, running_platform, wait_for
from tests.spine.jobs import get, submit, wait_for_end
from tests.spine.short_leases import book_soon
from tests.spine.workbenches import Looking
from worker.scripts.sandbox import find_level
from worker.workbench.jupyter import why_not_installed

KEYS, STARTS = 400, 5
PAUSE_S = 0.01  # nobody types faster
SHOWS = "echo begun; exec cat"
SSHD = shutil.which("sshd", path=f"{os.defpath}:/usr/sbin:/sbin")
Row = tuple[str, str, str]


def rows(keys: int = KEYS, starts: int = STARTS) -> list[Row]:
    """Measure, and return the rows of docs/benchmarks.md; none where no sandbox can be built."""
    if find_level().level is None:
        return []
    with running_platform(forked=False) as platform, platform.http() as client:
        terminal = [started(platform, client, "terminal") for _ in range(starts)]
        has_browser = not why_not_installed()
        jupyter = [
            started(platform, client, "jupyter") for _ in range(starts if has_browser else 0)
        ]
        idle_ms = echoes(platform, client, keys=keys, busy=False)
        busy_ms = echoes(platform, client, keys=keys, busy=True)["there"]
    by_ssh = f"by ssh {percentiles(idle_ms['ssh'])}; " if "ssh" in idle_ms else ""
    found = [
        (
            "a key's echo in a workbench's terminal",
            f"{percentiles(idle_ms['there'])}; {by_ssh}on a terminal of this machine "
            f"{percentiles(idle_ms['here'])}; load {os.getloadavg()[0]:.1f}",
            "adds <= 1 ms to ssh, p99 <= 10 ms",
        ),
        ("the same, beside a terminal of it that prints without end", percentiles(busy_ms), ""),
        (
            "start of a lease to the prompt of a terminal that was asked for ahead",
            seconds(terminal),
            "<= 5 s",
        ),
    ]
    if jupyter:
        what = "start of a lease until JupyterLab, asked for ahead, can be opened"
        found.append((what, seconds(jupyter), "<= 5 s"))
    return found


def started(platform: Running, client: httpx2.Client, kind: str) -> float:
    """Return the seconds from a lease's start until a workbench in it shows its prompt, or can be
    opened in the browser."""
    lease, start = book_soon(platform, starts_in_s=2)
    job = submit(client, bench(kind, lease=lease))
    wait_for(lambda: get(client, job)["state"] == "running", what="the workbench", every_s=0.01)
    if kind == "terminal":
        with Looking.at(platform, job) as look:
            look.wait_for("$ ")
    took_s = (utc_now() - start).total_seconds()
    end(client, job)
    client.post(f"/v1/leases/{lease}/release").raise_for_status()
    wait_for(
        lambda: client.get(f"/v1/leases/{lease}").json()["state"] == "ended", what="its lease's end"
    )
    return took_s


def echoes(
    platform: Running, client: httpx2.Client, *, keys: int, busy: bool
) -> dict[str, list[float]]:
    """Return the milliseconds of each key's echo, in a workbench (`there`), on a terminal here
    (`here`) and, with a server, through `ssh`."""
    job = submit(client, bench("terminal"))
    wait_for(lambda: get(client, job)["state"] == "running", what="the workbench")
    found: dict[str, list[float]] = {"there": []}
    with Looking.at(platform, job) as look, ExitStack() as stack:
        screens = {"here": stack.enter_context(terminal_of(["sh", "-c", SHOWS]))}
        if SSHD is not None:
            through_ssh = [*stack.enter_context(ssh_to_here()), SHOWS]
            screens["ssh"] = stack.enter_context(terminal_of(through_ssh))
        if busy:
            other = Looking.at(platform, job, "prints")
            other.type("yes 'a line that is as long as lines of programs often are'\n")
        look.type("cat\n")
        look.wait_for("cat\r\n")
        for number in range(keys):
            key = "abcdefghij"[number % 10]
            began = time.perf_counter()
            look.type(key)
            shown = b""
            while key.encode() not in shown:
                piece = look.connection.recv(timeout=30)
                assert isinstance(piece, bytes)
                shown = piece
            found["there"].append(1000 * (time.perf_counter() - began))
            for name, screen in screens.items():
                time.sleep(PAUSE_S)
                found.setdefault(name, []).append(echo_ms(screen, key))
            time.sleep(PAUSE_S)
        if busy:
            other.connection.close()
    end(client, job)
    return found


def echo_ms(screen: int, key: str) -> float:
    """Type a key on a terminal; return the milliseconds until it is shown."""
    began = time.perf_counter()
    os.write(screen, key.encode())
    while key.encode() not in os.read(screen, 4096):
        pass
    return 1000 * (time.perf_counter() - began)


@contextmanager
def terminal_of(command: Sequence[str]) -> Iterator[int]:
    """Yield the descriptor of a terminal of this machine in which a command has come to SHOWS."""
    pid, screen = pty.fork()
    if pid == 0:
        os.execvp(command[0], [*command])
    while b"begun" not in os.read(screen, 4096):
        pass
    yield screen
    os.kill(pid, signal.SIGKILL)
    os.close(screen)
    os.waitpid(pid, 0)


@contextmanager
def ssh_to_here() -> Iterator[Sequence[str]]:
    """Run an OpenSSH server for this user; yield the command that runs what follows through it."""
    assert SSHD is not None
    with tempfile.TemporaryDirectory(prefix="trainyard-ssh-") as folder:
        host, own = Path(folder, "host"), Path(folder, "own")
        for key in (host, own):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        port = str(own_port())
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # it does not start without
        options = ["PidFile=none", "StrictModes=no", "UsePAM=no", "ListenAddress=127.0.0.1"]
        options += [f"AuthorizedKeysFile={own}.pub", "PermitRootLogin=prohibit-password"]
        server = subprocess.Popen(
            [SSHD, "-D", "-q", "-f", "/dev/null", "-p", port, "-h", str(host),
             *(f"-o{option}" for option in options)]
        )  # fmt: skip
        try:
            yield [
                "ssh", "-tt", "-q", "-F", "/dev/null", "-p", port, "-i", str(own),
                "-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null",
                "-oConnectionAttempts=30", "127.0.0.1",
            ]  # fmt: skip
        finally:
            server.terminate()
            server.wait()


def bench(kind: str, **terms: str) -> dict[str, object]:
    """Return the job of a workbench."""
    wall_time = "24h" if terms else "20min"
    kind_of = {"kind": kind}
    return {"name": kind, "workbench": kind_of, "resources": {"wall_time": wall_time}, **terms}


def end(client: httpx2.Client, job: str) -> None:
    """Stop a workbench, and wait until its slots are free."""
    client.post(f"/v1/jobs/{job}/cancel").raise_for_status()
    wait_for_end(client, job)


def percentiles(found_ms: Sequence[float]) -> str:
    """Return the median and the 99th percentile in words."""
    ranked = sorted(found_ms)
    p99 = ranked[int(0.99 * (len(ranked) - 1))]
    return f"{statistics.median(ranked):.2f} ms, p99 {p99:.1f} ms"


def seconds(found_s: Sequence[float]) -> str:
    """Return the median and the range in words."""
    return f"{statistics.median(found_s):.2f} s ({min(found_s):.2f} to {max(found_s):.2f})"


if __name__ == "__main__":
    for row in rows():
        sys.stdout.write(f"| {' | '.join(row)} |\n")
