"""Deadline of a rank for its collectives, kept by threads of its own.

On a GPU a collective whose peer hangs or is dead raises nothing: the main thread sits in a CUDA
call, where Python runs no signal handler, until NCCL's watchdog aborts the process. So a thread
watches, below the backend's own timeout, and ends the process when the time is up. It is the same
with gloo.
"""

import faulthandler
import json
import os
import sys
import time
import traceback
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import NoReturn

from torch.distributed import DistError

from strategies.plan.durable_files import write_atomically
from strategies.plan.run_directory import ExitCode, RunDirectory
from strategies.train.failures import report
from strategies.train.mesh import SAVING, Mesh
from strategies.train.trust.collective_digest import Digest, Inquiry, in_time
from strategies.train.trust.preflight import PreflightFailed
from strategies.train.trust.roll_call import RanksMissing, RollCall

LOOK_EVERY_S = 0.5
LISTEN_EVERY_S = 1.0  # one small message per rank
STORE_IS_SILENT = Digest(
    missing=[0],
    why="rank 0, which keeps the list of the ranks, hangs or is gone",
    positions={},
)


@dataclass
class Waits:
    """Time for which collectives have been waiting, from the counts of each process group."""

    since: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Completed collectives of a group, and when that count was first seen with one waiting."""

    def longest_s(
        self, groups: dict[str, tuple[int, int]], *, now: float, begin: float
    ) -> tuple[float, str]:
        """Return the longest wait in seconds and its group, from `entered, completed` by group.

        Waits are counted from `begin` at the earliest.
        """
        found: list[tuple[float, str]] = []
        for group, (entered, completed) in groups.items():
            if entered == completed:
                self.since.pop(group, None)
                continue
            if self.since.get(group, (None, 0.0))[0] != completed:
                self.since[group] = completed, now
            found.append((now - max(begin, self.since[group][1]), group))
        return max(found, default=(0.0, ""))


class Deadline:
    """Two threads of one rank: one ends the process when a collective waits longer than the mesh's
    timeout, the other when another rank has asked who is missing."""

    def __init__(self, mesh: Mesh, directory: RunDirectory) -> None:
        self.mesh, self.directory = mesh, directory
        self.inquiry = Inquiry(mesh)
        self.preflight: RollCall | None = None
        """Roll call of the preflight, while one is done."""
        self.waits = Waits()
        self.ending = Lock()
        """Taken once, by the thread that decides how this process ends."""
        self.stopped, self.asked = Event(), Event()

    def start(self) -> None:
        """Start to watch."""
        for watch in (self.watch_collectives, self.listen):
            Thread(target=watch, name=watch.__name__, daemon=True).start()

    def stop(self) -> None:
        """Leave the end of the process to the caller; never returns if a thread ends it."""
        self.ending.acquire()
        self.stopped.set()

    def watch_collectives(self) -> None:
        """End the process when a collective is overdue, or another rank has asked."""
        while not self.stopped.wait(LOOK_EVERY_S):
            if self.asked.is_set() or self.is_overdue():
                self.give_up()

    def listen(self) -> None:
        """Look whether another rank has asked who is missing."""
        while not self.stopped.wait(LISTEN_EVERY_S):
            try:
                if self.inquiry.is_open():
                    self.asked.set()
                    return
            except DistError:
                return  # the store is gone; the connections to its keeper break too

    def is_overdue(self) -> bool:
        """Return True if a collective waits longer than the mesh's timeout."""
        timeout = self.mesh.timeout
        status = json.loads(self.inquiry.dump(False, False)).get("pg_status", {})
        groups = {
            group: (int(one["last_enqueued_collective"]), int(one["last_completed_collective"]))
            for group, one in status.items()
        }
        waited_s, group = self.waits.longest_s(groups, now=time.monotonic(), begin=timeout.since)
        return waited_s >= timeout.seconds and self.waits_in(group)

    def waits_in(self, group: str) -> bool:
        """Return True if the training waits for a collective of this group.

        Counts alone cannot tell: with gloo a collective may complete before an earlier one.
        """
        return any(
            str(entry["pg_id"]) == group
            and not (entry["retired"] or entry["is_p2p"])
            and entry["process_group"][1] != SAVING
            for entry in self.inquiry.entries()
        )

    def give_up(self) -> NoReturn:
        """Record the stacks, the last collectives and the missing rank, and end the process."""
        self.ending.acquire()  # never returns if the main thread has failed meanwhile
        sys.stderr.write("A collective is overdue; this is what each thread does:\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(all_threads=True)
        code = ExitCode.STALLED
        try:
            if self.preflight is not None:
                found = self.preflight.explain(TimeoutError("the ranks did not come in time"))
                code = report(PreflightFailed(f"preflight: {found}"))
            else:
                digest = in_time(self.inquiry.hold) or STORE_IS_SILENT
                code = report(RanksMissing(digest.why, frozenset(digest.missing)), digest)
            kept = self.inquiry.dump(True, False)
            write_atomically(self.directory.collectives(self.mesh.rank), kept)
        except Exception:  # the edge of the process
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
