"""`python -m benchmarks.preflight [RANKS] [GROUPS]`: time of the quick preflight before an attempt.

Every group of ranks is forked anew from a process that has imported all modules of a run, as the
warm launcher does, because first-time work in a process takes most of the time. Goal: at 4 ranks a
median of at most 50 ms.
"""

import gc
import os
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from strategies.plan.layout import Layout
from strategies.train.main import preload
from strategies.train.mesh import Mesh
from strategies.train.trust.preflight import quick
from worker.ranks.launch import free_port

RANKS, GROUPS = 4, 60
TIMEOUT = timedelta(seconds=30)


def main(ranks: int = RANKS, groups: int = GROUPS) -> None:
    """Measure and print a line."""
    preload()
    gc.collect()
    gc.freeze()
    taken = [milliseconds(ranks) for _ in range(groups)]
    taken_ms = sorted(ms for ms, _ in taken)
    p95 = taken_ms[round(0.95 * (groups - 1))]
    sys.stdout.write(
        f"quick preflight, {ranks} ranks of gloo on {os.cpu_count()} cores, {groups} groups: "
        f"median {statistics.median(taken_ms):.0f} ms, 95 % within {p95:.0f} ms, "
        f"{taken_ms[0]:.0f} to {taken_ms[-1]:.0f}; CPU time of all ranks "
        f"{statistics.median(ms for _, ms in taken):.0f} ms; load {os.getloadavg()[0]:.1f}\n"
    )


def milliseconds(ranks: int) -> tuple[float, float]:
    """Return the time of a preflight in rank 0 of a new group, and the CPU time of all ranks, in
    ms."""
    told, tell = os.pipe()
    port = free_port()
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            be_rank(rank, ranks, port, tell)
        pids.append(pid)
    os.close(tell)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    with os.fdopen(told) as file:
        said = [line.split() for line in file]
    if any(codes):
        sys.exit(f"the ranks ended with {codes}")
    (taken_ms,) = [float(ms) for rank, ms, _ in said if rank == "0"]
    return taken_ms, sum(float(cpu_ms) for _, _, cpu_ms in said)


def be_rank(rank: int, ranks: int, port: int, tell: int) -> None:
    """Join the group, run the preflight, write the times to `tell` and end the process."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=ranks,
        timeout=TIMEOUT,
    )
    mesh = Mesh(layout=Layout(replicate=ranks), rank=rank, device=torch.device("cpu"))
    cpu_s = time.process_time()
    report = quick(mesh)
    cpu_s = time.process_time() - cpu_s
    os.write(tell, f"{rank} {report.seconds * 1e3} {cpu_s * 1e3}\n".encode())
    dist.barrier()  # rank 0 holds the store and must end last
    os._exit(len(report.failures))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
