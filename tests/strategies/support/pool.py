"""Warm ranks that train one run after another: a short run takes a tenth of a second, not five.

A fork per run pays for new process groups and for DTensor's cold caches (seconds with tensor
parallelism). Here each number of ranks has its processes, and they live until the tests end.
"""

import os
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import NamedTuple

from strategies.plan.durable_files import json_bytes
from strategies.plan.run_directory import RunPlan
from tests.strategies.support.training_runs import Run, WarmRanks

LAST_WORDS_S = 2.0  # once a rank has failed, how long the others get to say that they have, too


class Order(NamedTuple):
    """What a rank of the pool is asked for; `mutant` breaks one thing, for this run only."""

    run_plan: RunPlan
    run_dir: str
    mutant: str | None


class RunFailed(Exception):
    """A run in the pool raised, hung or died; the message has every rank's traceback."""


@dataclass
class Ranks:
    """The living ranks of one process group, in the order of their ranks."""

    pids: list[int]
    connections: list[Connection]


class Pool:
    """Ranks for every number of them, forked when they are first needed."""

    def __init__(self, warm: WarmRanks) -> None:
        self.warm = warm
        self.alive: dict[int, Ranks] = {}

    def train(
        self, run_plan: RunPlan, path: Path, *, mutant: str | None = None, deadline_s: float = 150
    ) -> Run:
        """Run to the end; RunFailed where a rank does not get there in time."""
        path.mkdir(parents=True, exist_ok=True)
        run = Run(path)
        run.directory.plan.write_bytes(json_bytes(run_plan))
        num_ranks = run_plan.plan.world_size
        if num_ranks not in self.alive:
            self.alive[num_ranks] = self.fork(num_ranks)
        ranks = self.alive[num_ranks]
        for connection in ranks.connections:
            connection.send(Order(run_plan, str(path), mutant))
        failures = self.failures(ranks, deadline_s)
        if failures:  # one rank may wait for another for ever: none of them is of use any more
            self.abort(num_ranks)
            by_rank = [f"rank {rank}: {failures[rank]}" for rank in sorted(failures)]
            raise RunFailed("\n".join(by_rank))
        return run

    def fork(self, num_ranks: int) -> Ranks:
        """New ranks; they meet when the first run comes."""
        with Listener(family="AF_UNIX") as listener:
            pids = self.warm.start_to_stay(
                "pool_ranks.py", "serve", ranks=num_ranks, address=listener.address
            )
            by_rank = {}
            for _ in range(num_ranks):
                connection = listener.accept()
                by_rank[connection.recv()] = connection
        return Ranks(pids, [by_rank[rank] for rank in range(num_ranks)])

    def failures(self, ranks: Ranks, deadline_s: float) -> dict[int, str]:
        """Wait until every rank has trained; what those say that have not."""
        failures = {}
        waiting = {connection: rank for rank, connection in enumerate(ranks.connections)}
        until = time.monotonic() + deadline_s
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, until - time.monotonic()))
            if not ready:
                late = "did not end" if failures else f"did not end within {deadline_s:.0f} s"
                return failures | dict.fromkeys(waiting.values(), late)
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                try:
                    said = connection.recv()
                except (EOFError, ConnectionError):
                    said = "died"
                if said is not None:
                    failures[rank] = said
                    until = min(until, time.monotonic() + LAST_WORDS_S)
        return failures

    def abort(self, num_ranks: int) -> None:
        """Kill the ranks of one process group; they tell their stderr where they were."""
        ranks = self.alive.pop(num_ranks)
        for pid in ranks.pids:
            os.kill(pid, signal.SIGABRT)
        for connection in ranks.connections:
            connection.close()

    def close(self) -> None:
        """Let all ranks go home."""
        for ranks in self.alive.values():
            for connection in ranks.connections:
                connection.close()
