"""hand-over: what others left on the node is seen, and a script sees its own GPU only."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from core.states import GpuHealth
from worker.node.process_tree import strays
from worker.proving.bench import Bench
from worker.proving.finding import CheckFailed, Finding, all_of
from worker.scripts.sandbox import Box, Level, first_that_works
from worker.scripts.sandbox_users import user_for_a_while

LOOK_EVERY_S = 0.02
PROCESS = "import sys; print('here', flush=True); sys.stdin.read()"
HOLDER = """
import os, sys, torch
held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
print(os.getpid(), flush=True)
sys.stdin.read()
"""
# A child of this process would be one of the worker's own: its parent leaves it behind.
LEAVE = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
INSIDE = """
import os, torch, torch.distributed as dist
gpus = torch.cuda.device_count()
device = torch.device("cuda", 0) if gpus else torch.device("cpu")
dist.init_process_group("nccl" if gpus else "gloo", store=dist.HashStore(), rank=0, world_size=1)
number = torch.ones(1, device=device)
dist.all_reduce(number)
print("gpus", gpus, "sum", int(number.item()))
dist.destroy_process_group()  # a thread of gloo that outlives Python aborts the process
"""


def look(bench: Bench) -> Finding:
    """Leave a process behind, look, end it, look again; then look from inside a sandbox."""
    on_gpu = bench.device == "cuda"
    seen, gone = left_behind(bench)
    found = occupied_by_another(bench) if on_gpu else GpuHealth.OCCUPIED
    level, reason = first_that_works(list(Level), in_gang=False)
    said = "" if level is None else inside(bench, level)
    return judge(seen=seen, gone=gone, occupied=found, said=said, no_sandbox=reason, on_gpu=on_gpu)


def left_behind(bench: Bench) -> tuple[bool, bool]:
    """Return whether a process of an ended attempt is seen, and whether it is seen to be gone."""
    folder = bench.folder.attempts / "proof-left.1"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        seen = process.pid in strays(bench.folder.attempts, live=set())
        process.kill()
        process.wait()
    while strays(bench.folder.attempts, live=set()) and bench.left_s > 0:
        time.sleep(LOOK_EVERY_S)
    return seen, not strays(bench.folder.attempts, live=set())


def occupied_by_another(bench: Bench) -> GpuHealth:
    """Return the health of the first GPU while a foreign process holds its memory.

    Returns once it is healthy again after that process's end. Raises OutOfTime.
    """
    with subprocess.Popen(
        [sys.executable, "-c", LEAVE, HOLDER],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": bench.gpus(1)[0]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        told = process.stdout.readline()
        if not told.strip().isdigit():
            raise CheckFailed("a process that was to hold a GPU's memory ended by itself")
        seen = health_of_first(bench)
        os.kill(int(told), signal.SIGKILL)
    while health_of_first(bench) is not GpuHealth.HEALTHY and bench.left_s > 0:
        time.sleep(LOOK_EVERY_S)
    return seen


def health_of_first(bench: Bench) -> GpuHealth:
    """Return the health of the first GPU as the worker sees it without any attempt."""
    return bench.node_gpus.look(held=(), roots=())[0].health


def inside(bench: Bench, level: Level) -> str:
    """Return what a script says of its GPUs from a sandbox that was given one, if there are any."""
    with (
        tempfile.TemporaryDirectory(prefix="trainyard-proof-") as folder,
        user_for_a_while() as uid,
    ):
        os.chmod(folder, 0o755)
        scratch = Path(folder, "tmp")
        scratch.mkdir()
        scratch.chmod(0o777)
        gpus = bench.node_gpus.minors_of([0]) if bench.device == "cuda" else ()
        box = Box(
            folder=Path(folder),
            command=[sys.executable, "-I", "-c", INSIDE],
            environment={"PATH": "/usr/bin:/bin", "GLOO_SOCKET_IFNAME": "lo", "HOME": "/tmp"},
            working_folder="/tmp",
            binds=[(scratch, "/tmp", True)],
            gpus=gpus,
            uid=uid,
        )
        command, told = box.launch(level)
        try:
            done = subprocess.run(
                command, input=told, capture_output=True, timeout=bench.left_s, env={}, cwd="/"
            )
        except subprocess.TimeoutExpired as error:
            raise CheckFailed("a script in its sandbox did not end") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise CheckFailed(f"a script in its sandbox failed: {' '.join(lines[-2:])[-400:]}")
    return done.stdout.decode().strip()


def judge(
    *,
    seen: bool,
    gone: bool,
    said: str,
    no_sandbox: str,
    on_gpu: bool,
    occupied: GpuHealth = GpuHealth.OCCUPIED,
) -> Finding:
    """Return whether the leftover was seen, then gone, and the script saw what it was given.

    `occupied` is the health of a GPU whose memory a foreign process held.
    """
    wrong = []
    if not seen:
        wrong.append("what another process left behind is not seen")
    if not gone:
        wrong.append("the node is not clean although that process has ended")
    if occupied is not GpuHealth.OCCUPIED:
        wrong.append(f"a GPU is {occupied} while a foreign process holds its memory")
    expected = f"gpus {int(on_gpu)} sum 1"
    if said and said != expected:
        wrong.append(f"a script in its sandbox says {said!r} instead of {expected!r}")
    alone = f"no sandbox works here ({no_sandbox})" if not said else "a script sees its GPUs only"
    return all_of(wrong, f"A process left behind is seen, then gone; {alone}.", {})
