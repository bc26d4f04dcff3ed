"""The fake trainer, which also writes down outside of its node when it made which step.

One file a process, `<house>/ledger/<job>.<epoch>.<pid>`, of lines `step boot-seconds`: two that
overlap in time are a job that ran twice. A full disk makes it wait, as a training's spool does.
"""

import errno
import os
import sys
import time
from collections.abc import Sequence

import fake_trainer


class LedgerRank(fake_trainer.FakeRank):
    def run(self) -> int:
        if self.rank == 0:
            folder = self.directory.path.parents[2] / "ledger"
            name = f"{self.directory.path.name}.{os.getpid()}"
            self.ledger = open(folder / name, "a", buffering=1)  # noqa: SIM115
        return super().run()

    def one_step(self) -> None:
        super().one_step()
        if self.rank == 0:
            self.ledger.write(f"{self.step} {time.clock_gettime(time.CLOCK_BOOTTIME)}\n")

    def write_metrics(self, **values: object) -> None:
        while True:
            size = self.directory.metrics.stat().st_size if self.directory.metrics.exists() else 0
            try:
                super().write_metrics(**values)
                return
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                if self.directory.metrics.exists():
                    os.truncate(self.directory.metrics, size)
                time.sleep(0.05)

    def save(self) -> str:
        while True:
            try:
                return super().save()
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                for half in self.directory.checkpoints.glob("*.tmp-0"):
                    for file in half.iterdir():
                        file.unlink()
                    half.rmdir()
                time.sleep(0.05)


fake_trainer.FakeRank = LedgerRank  # type: ignore[misc]


def main(argv: Sequence[str] | None = None) -> int:
    return fake_trainer.main(argv)


if __name__ == "__main__":
    sys.exit(main())
