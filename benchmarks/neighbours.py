"""Step time of one program beside a neighbour on another slot of the node, against without one.

`python -m benchmarks.neighbours` runs two sandboxes as the worker builds them, each confined to
one of two slots of this machine. The watched program makes steps all the time; its neighbour comes
and goes. Each pair is the median step with the neighbour over the median step before it came.
`--first` runs the watched program before all other work of the machine (needs root): on a machine
that others use their work is not counted then, and has to wait on that core.
"""

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path

from benchmarks.ratios import Ratio, ratio
from core.states import Sharing
from worker.node.cores import divide
from worker.node.memory import machine
from worker.node.process_tree import ProcessTree, cgroup_for, join_cgroup
from worker.node.resource_limits import ResourceLimits, remove_groups_v1
from worker.node.sharing import find_sharing_host
from worker.scripts.sandbox import Box, Level, find_level
from worker.scripts.sandbox_users import user_for_a_while

SLOTS = 2
SETTLE_S = 0.3  # after the neighbour has come or gone
PROGRAM = """
import os, sys, time
{setup}
sys.stdout.write("ready\\n")
sys.stdout.flush()
while True:
{loop}
"""
STEP = """
began = time.perf_counter()
{step}
sys.stdout.write(f"{{time.monotonic()}} {{time.perf_counter() - began}}\\n")
sys.stdout.flush()
"""
ONE_THREAD = "import torch; torch.set_num_threads(1)"
TRAINING = f"""{ONE_THREAD}
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(128, 512)
def train():
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
FORK = """
if os.fork() == 0:
    os._exit(0)
os.wait()
"""
WRITE = """
with open("/tmp/filler", "wb") as file:
    for _ in range(128):
        file.write(bytes(1 << 20))
    file.flush()
    os.fsync(file.fileno())
"""
CHECKPOINT = """
with open("/tmp/checkpoint", "wb") as file:
    file.write(bytes(16 << 20))
    file.flush()
    os.fsync(file.fileno())
"""
READ_ONCE = """
with open("/tmp/rows", "wb") as file:
    file.write(os.urandom(16 << 20))
    os.fsync(file.fileno())
"""
READ = """
with open("/tmp/rows", "rb") as file:
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    file.read()
"""


def program(setup: str, loop: str) -> str:
    """Return the source of a program that says `ready`, then does `loop` for ever."""
    return PROGRAM.format(setup=setup, loop=textwrap.indent(loop, "    "))


WATCHED = {
    "training step": program(TRAINING, STEP.format(step="train()")),
    "memory copy": program(
        f"{ONE_THREAD}; a = torch.ones(1 << 24); b = torch.empty_like(a)",
        STEP.format(step="b.copy_(a)"),
    ),
    "16 MB write + fsync": program("", STEP.format(step=CHECKPOINT)),
    "16 MB read": program(READ_ONCE, STEP.format(step=READ)),
}
NEIGHBOURS = {
    "matmul, 2 threads": program(
        "import torch; torch.set_num_threads(2); a = torch.randn(1024, 1024)", "a @ a"
    ),
    "16 busy processes": program("for _ in range(4): os.fork()", "pass"),
    "fork loop": program("", FORK),
    "memory stream": program(
        f"{ONE_THREAD}; a = torch.ones(1 << 25); b = torch.empty_like(a)", "b.copy_(a)"
    ),
    "128 MB writes + fsync": program("", WRITE),
}


def main() -> None:
    """Measure every pair of programs, and print a row of the table for each watched one."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--watched", choices=WATCHED, action="append", help="default: all")
    parser.add_argument("--beside", choices=NEIGHBOURS, action="append", help="default: all")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each half of a pair")
    parser.add_argument("--first", action="store_true", help="run the watched program first of all")
    parser.add_argument("--slot", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--level", type=Level, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.slot is not None:
        enter(asked.slot, asked.folder, asked.level, first=asked.first)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # its programs and cgroups end with it
    for name in asked.watched or WATCHED:
        for neighbour in asked.beside or NEIGHBOURS:
            other = NEIGHBOURS[neighbour]
            found = beside(WATCHED[name], other, asked.pairs, asked.seconds, first=asked.first)
            sys.stdout.write(f"{name} beside {neighbour}: {found}\n")
            sys.stdout.flush()


def beside(source: str, other: str, pairs: int, seconds: float, *, first: bool) -> Ratio:
    """Return the ratio of step times of `source` beside `other` to those alone."""
    alone, together = [], []
    with running(0, source, first=first) as watched:
        for _ in range(pairs):
            alone.append(median_step(watched, seconds))
            with running(1, other, first=False):
                together.append(median_step(watched, seconds))
    return ratio(together, alone)


def line_of(process: "subprocess.Popen[str]") -> str:
    """Return the next line that a program prints."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, "the program has ended"
    return line


def median_step(process: "subprocess.Popen[str]", seconds: float) -> float:
    """Return the median of the steps in the next `seconds`, after things have settled."""
    since = time.monotonic() + SETTLE_S
    found: list[float] = []
    while True:
        ended, took = map(float, line_of(process).split())
        if ended > since + seconds:
            return statistics.median(found or [took])
        if ended - took > since:
            found.append(took)


@contextlib.contextmanager
def running(slot: int, source: str, *, first: bool) -> Iterator["subprocess.Popen[str]"]:
    """Run a program in its sandbox on a slot; it has begun to compute when it is yielded."""
    with tempfile.TemporaryDirectory(prefix="trainyard-neighbours-") as folder:
        attempt = Path(folder, f"slot.{slot}")
        for name in ("box", "tmp"):
            (attempt / name).mkdir(parents=True)
            (attempt / name).chmod(0o777)
        os.chmod(folder, 0o755)
        (attempt / "program.py").write_text(source)
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.neighbours", "--slot", str(slot), "--folder",
             str(attempt), "--level", sandbox_level(), *(["--first"] if first else [])],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            assert line_of(process) == "ready"
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            cgroup = cgroup_for(attempt)
            assert ProcessTree(attempt, cgroup).kill(within_s=10), "the program is still there"
            remove_groups_v1(attempt)
            if cgroup is not None:
                cgroup.remove()


@cache
def sandbox_level() -> Level:
    """Return the sandbox that can be built here."""
    found = find_level()
    assert found.level is not None, found.reason
    return found.level


def enter(slot: int, folder: Path, level: Level, *, first: bool) -> None:
    """Run the program of `folder` in a sandbox on the share of a slot, to its end."""
    cpus = divide(find_sharing_host(Sharing.RECIPES).cores, SLOTS)[slot]
    here = machine()
    limits = ResourceLimits(
        folder,
        join_cgroup(folder),
        here.bound(None, Fraction(1, SLOTS)),
        here.for_jobs,
        processes=512,
        cpus=cpus,
    )
    limits.set()
    limits.keep_apart(strictly=True)
    limits.enter()
    if first:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    with user_for_a_while() as uid:
        box = Box(
            folder=folder / "box",
            command=[sys.executable, "/job/program.py"],
            environment={"PATH": "/usr/bin:/bin", "HOME": "/tmp", "OMP_NUM_THREADS": "1"},
            working_folder="/tmp",
            binds=[
                (folder / "tmp", "/tmp", True),
                (folder / "program.py", "/job/program.py", False),
            ],
            limits={"RLIMIT_CORE": 0},
            shm_bytes=1 << 30,
            may_set_affinity=limits.may_set_affinity,
            uid=uid,
        )
        command, told = box.launch(level)
        done = subprocess.run(command, input=told, check=False, env={}, cwd="/")
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
