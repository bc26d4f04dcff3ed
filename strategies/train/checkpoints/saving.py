"""Saving beside the training: the state is copied before its next update, a thread writes it."""

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from strategies.plan.spec import TrainSpec
from strategies.train.checkpoints.checkpoint import Progress, save_checkpoint
from strategies.train.checkpoints.disks import Disk
from strategies.train.checkpoints.host_copy import HostCopy
from strategies.train.engine import Engine
from strategies.train.mesh import Mesh


class SavedCheckpoint(NamedTuple):
    """Checkpoint that is safe on disk, on every node."""

    path: Path
    step: int
    stage_s: float
    """Time until the state was copied; on a GPU the next step's passes go on meanwhile."""
    save_s: float
    """Time from the request to the end."""


@dataclass
class CheckpointWriter:
    """Writer of one checkpoint at a time; all ranks call it at the same steps."""

    checkpoints: Path
    spec: TrainSpec
    mesh: Mesh
    disk: Disk | None = None
    """Disk of this rank, needed with several nodes."""

    def __post_init__(self) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self.copy = HostCopy(self.mesh.device)
        self.under_way: Future[SavedCheckpoint] | None = None
        self.token = self.mesh.broadcast_text(str(os.getpid()))

    def start(
        self, engine: Engine, progress: Progress, eval_loss: float | None
    ) -> SavedCheckpoint | None:
        """Copy the state and begin to write it; return the previous save, which had to end
        first."""
        before = self.finish()
        began = time.perf_counter()
        _ = self.mesh.saving_group  # created here, by all ranks in the same order
        state = self.copy.take(engine.state())

        def write() -> SavedCheckpoint:
            self.copy.wait()
            stage_s = time.perf_counter() - began
            path = save_checkpoint(
                self.checkpoints,
                state,
                progress,
                self.spec,
                self.mesh,
                token=self.token,
                eval_loss=eval_loss,
                disk=self.disk,
            )
            return SavedCheckpoint(path, progress.step, stage_s, time.perf_counter() - began)

        self.under_way = self.thread.submit(write)
        return before

    def finished(self) -> SavedCheckpoint | None:
        """Return the save that has ended since the last call, if any."""
        if self.under_way is None or not self.under_way.done():
            return None
        return self.finish()

    def finish(self) -> SavedCheckpoint | None:
        """Wait for the save in progress and return it; its error, if any, is raised here."""
        if self.under_way is None:
            return None
        saving, self.under_way = self.under_way, None
        return saving.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the save in progress end even if the run fails: it may be its last good state."""
        self.thread.shutdown(wait=True)
