"""The worker of run_worker.py as it is forked, and its first two spawners are forked from it.

They do what a new process would, without its imports. A spawner that is started again is a new one.
"""

import os
from typing import IO, Any

import fake_trainer
import run_worker

from core.process.parent_death import die_with_parent
from standalone.forks import Fork
from worker import spawner, warm
from worker.agent import spawners

FORKED = {
    "worker.spawner": spawner.serve,
    "worker.warm": lambda: warm.main(fake_trainer.__name__),
}


class ForkedSpawner(spawners.Spawner):
    """A spawner whose first process is forked while the worker has one thread."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        super().__init__(command, environment)
        _, _, _, module, *trainer = command
        has_it = trainer in ([], [fake_trainer.__name__])
        self.first = Waiting(module, environment) if has_it else None

    def start(self) -> None:
        self.process, self.first = self.first, None  # type: ignore[assignment]
        if self.process is None:
            super().start()


class Waiting(Fork):
    """One of both programs, which reads its orders from `stdin`."""

    stdin: IO[bytes]

    def __init__(self, module: str, environment: dict[str, str]) -> None:
        orders, end = os.pipe()

        def work() -> Any:
            die_with_parent(0)  # type: ignore[arg-type]
            os.dup2(orders, 0)
            os.close(orders)
            os.chdir("/")
            os.environ.clear()
            os.environ.update(environment)
            FORKED[module]()

        super().__init__(f"ty-{module.partition('.')[2]}", work, {}, 2, [orders])
        os.close(orders)
        self.stdin = os.fdopen(end, "wb")


def main() -> int:
    """Run the worker; its exit code."""
    spawners.Spawner = ForkedSpawner  # type: ignore[misc]
    return run_worker.main()
