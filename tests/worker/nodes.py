"""A worker process on a data directory of its own, and orders for it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from core.spec.spec import Launcher
from core.states import Outcome
from core.wire.messages import Deadlines, Order
from strategies.plan.hardware import Hardware
from strategies.plan.planner import plan
from strategies.plan.spec import TrainSpec
from tests.forked import Forked, origin
from tests.worker.fake_api import FakeApi
from worker.node.attempts import Attempt, Key, NodeFolder
from worker.node.process_tree import attempts_of_processes

HERE = Path(__file__).parent
TREE = HERE.parents[1]  # not what may be installed from elsewhere
HOUR = 3600.0
NORMAL: Mapping[str, float] = {}
HARDWARE = Hardware(class_name="cpu-8", device="cpu", slots=8, memory_gib=24)
Value = TypeVar("Value")


def make_spec(*, ranks: int = 2, steps: int = 30, every_steps: int | None = 10) -> TrainSpec:
    """A model that is tiny enough for real training too."""
    return TrainSpec.model_validate(
        {
            "model": {"name": "gpt", "layers": 1, "width": 16, "heads": 2},
            "data": {"dataset": "python-stdlib", "sequence_length": 32},
            "training": {"steps": steps, "global_batch_size": 4, "learning_rate": 1e-3, "seed": 3},
            "parallelism": {"strategy": "ddp" if ranks > 1 else "single"},
            "checkpoint": {"every_steps": every_steps, "keep_last": 2},
        }
    )


def make_order(
    job: str = "job_a",
    epoch: int = 1,
    *,
    ranks: int = 2,
    steps: int = 30,
    launcher: Launcher = Launcher.WARM,
    stop_in_s: float = HOUR,
    kill_after_s: float = 30.0,
    checkpoint_in_s: float = HOUR,
    every_steps: int | None = 10,
    hardware: Hardware = HARDWARE,
    **other: Any,
) -> Order:
    """An order as the API would give it."""
    spec = make_spec(ranks=ranks, steps=steps, every_steps=every_steps)
    return Order(
        job_id=job,
        epoch=epoch,
        spec=spec,
        plan=plan(spec, nodes=1, ranks_per_node=ranks, hardware=hardware),
        launcher=launcher,
        deadlines=Deadlines(
            checkpoint_in_s=checkpoint_in_s,
            stop_in_s=stop_in_s,
            stop_reason=Outcome.LEASE_ENDED,
            kill_in_s=stop_in_s + kill_after_s,
        ),
        **{"dataset": None, "resume": None, **other},
    )


class Node:
    """One machine's worker, as a process that can be killed and started again."""

    folders: tuple[Path, ...] = (HERE,)
    """Where the worker finds modules of the tests."""

    def __init__(self, path: Path, api: FakeApi, *, redis_url: str = "") -> None:
        self.folder = NodeFolder(path)
        path.mkdir(parents=True, exist_ok=True)
        self.api = api
        # By default a broker that is not there: everything must work without one.
        self.redis_url = redis_url or f"unix://{path}/no-broker.sock?db=0"
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.boot_id = ""
        identity = {
            "node_id": "node_1",
            "name": "n1",
            "node_token": "node-secret-token-of-the-tests",
        }
        self.folder.identity.write_text(json.dumps(identity))

    @property
    def log(self) -> Path:
        return self.folder.path.parent / f"{self.folder.path.name}.log"

    def behave(self, **behaviour: Any) -> None:
        """What the fake trainer should do."""
        (self.folder.path / "behaviour.json").write_text(json.dumps(behaviour))

    def let_go_on(self) -> None:
        """End the wait of a trainer that holds after a step."""
        (self.folder.path / "go_on").touch()

    def start(
        self,
        *,
        trainer: str = "fake_trainer",
        warm: bool = True,
        within: Sequence[str] = (),
        patience: Mapping[str, float] = NORMAL,
        **environment: str,
    ) -> None:
        """Start the worker, `within` another command. Its standard output goes to `log`.

        Without `warm` no process waits to fork the ranks of recipes: for tests that train none.
        `patience` are waits of the worker that a test shortens, in seconds by their full names.
        """
        own = {"TRAINYARD_BOOT_ID": self.boot_id} if self.boot_id else {}
        complete = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (*self.folders, TREE, TREE / "client"))),
            "TRAINYARD_API_URL": self.api.url,
            "TRAINYARD_REDIS_URL": self.redis_url,
            "TRAINYARD_DATA": str(self.folder.path),
            "TRAINYARD_POLL_S": "0.3",
            "TRAINYARD_WARM_LAUNCHER": json.dumps(warm),
            "TRAINYARD_TEST_PATIENCE": json.dumps(dict(patience)),
            **own,
            **environment,
        }
        with open(self.log, "ab") as log:
            if not within:
                programs = origin(*self.folders)
                self.process = programs.start(
                    "forked_worker", trainer, environment=complete, log=log
                )
                return
            command = [*within, sys.executable, str(HERE / "run_worker.py"), trainer]
            self.process = subprocess.Popen(command, env=complete, stdout=log, stderr=log)

    def kill(self) -> None:
        """kill -9 of the worker's process alone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def attempt(self, key: Key) -> Attempt:
        return self.folder.attempt(key)

    def processes(self, key: Key) -> set[int]:
        """Everything that works for an attempt: the shim, torchrun, ranks, their children."""
        return {
            pid
            for pid, folder in attempts_of_processes(self.folder.attempts)
            if folder == key.folder
        }

    def trainers(self, key: Key) -> set[int]:
        """All of these but the shim, which ends them before it says that the attempt is over, and
        ends itself after that."""
        return self.processes(key) - {self.shim_pid(key)}

    def rank_pid(self, key: Key, rank: int) -> int:
        """Of a fake trainer's rank, once it runs."""
        path = self.attempt(key).path / f"rank-{rank}.pid"
        return wait_for(lambda: int(path.read_text()) if path.exists() else None)

    def shim_pid(self, key: Key) -> int:
        return wait_for(
            lambda: shim.pid if (shim := self.attempt(key).shim()) is not None else None
        )

    def close(self) -> None:
        """Leave nothing behind."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        while left := [pid for pid, _ in attempts_of_processes(self.folder.attempts)]:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if all(gone(pid) for pid in left):
                break


def wait_for(ask: Callable[[], Value | None], *, within_s: float = 60.0) -> Value:
    """The first answer of `ask` that is neither None nor False."""
    deadline = time.monotonic() + within_s
    while True:
        answer = ask()
        if answer is not None and answer is not False:
            return answer
        assert time.monotonic() < deadline, f"waited {within_s} s in vain"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether the process has ended (a zombie has)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
