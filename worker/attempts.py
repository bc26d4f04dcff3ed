"""An attempt's folder on this node: the run directory, and what only the worker keeps in it.

attempts/<job>.<epoch>/ is also the start token: it is made once, synced to disk, and never made
again for an epoch that was wiped. Files that cannot be read count as absent, each with the
consequence that its reader states.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.messages import ExitRecord, Order, Rendezvous, Request
from core.spec import Launcher
from core.states import Outcome
from strategies.run_directory import RunDirectory, fsync_directory, json_bytes, write_atomically

FOLDER_NAME = re.compile(r"^([A-Za-z0-9_-]{1,80})\.(\d{1,9})$")
WIPED = "wiped.json"
LOG_BYTES = 128 << 20  # of each stream of each rank, kept on the disk and sent to the API
TAIL_BYTES = 16_384  # of metrics.jsonl, to find the last step: a line has some 300 bytes

log = structlog.get_logger()
Stored = TypeVar("Stored", bound=BaseModel)


class Key(NamedTuple):
    """Names one attempt."""

    job_id: str
    epoch: int

    @property
    def folder(self) -> str:
        return f"{self.job_id}.{self.epoch}"


class Kept(BaseModel):
    """Base of the worker's own small files."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Start(Kept):
    """start.json: what the shim is to start. Written by the agent, before it asks for a shim."""

    job_id: str
    epoch: int
    node: str
    trainer: str
    """The module whose main(argv) is one rank."""
    launcher: Launcher
    ranks: int = Field(ge=1)
    """On this node."""
    threads: int = Field(ge=1)
    """Of each rank."""
    script: bool = False
    """plan.json is a script's; there is no trainer."""
    gpus: list[int] = []
    """Indices of the GPUs that the ranks may see, in order; empty without GPUs."""
    nodes: int = Field(default=1, ge=1)
    position: int = Field(default=0, ge=0)
    """Of this node among them."""
    rendezvous: Rendezvous | None = None
    """Where the ranks of several nodes meet."""
    interface: str = ""
    """The network interface that leads to the other nodes, where there are any."""
    log_bytes: int = Field(default=LOG_BYTES, ge=4096)
    """Kept of each stream of each rank: of a longer one its first and its last half."""
    memory_bytes: int | None = Field(default=None, ge=1)
    """That all its processes here may use at most; None: as much as the machine has."""

    @property
    def global_ranks(self) -> range:
        """Of the ranks on this node."""
        return range(self.position * self.ranks, (self.position + 1) * self.ranks)


class ShimState(Kept):
    """shim.json: the shim that owns the attempt. It is created exclusively: the second shim of an
    attempt finds it and leaves."""

    pid: int
    boot_id: str
    launcher: Launcher
    began_s: float
    """On the boot clock."""
    cgroup: str | None = None
    """Where it is, if the machine allows one. A later worker may run in another place."""


class Schedule(Kept):
    """deadlines.json: when the shim does what, on the boot clock of `boot_id`."""

    boot_id: str
    checkpoint_at: float
    stop_at: float
    """control.json asks the ranks to save and stop."""
    term_at: float
    kill_at: float
    reason: Outcome
    ordered: bool = False
    """The stop was ordered; it is then not moved to later."""


class Attempt(RunDirectory):
    """The paths and files of one attempt on this node."""

    @property
    def key(self) -> Key:
        job_id, _, epoch = self.path.name.rpartition(".")
        return Key(job_id, int(epoch))

    @property
    def order_file(self) -> Path:
        return self.path / "order.json"

    @property
    def start_file(self) -> Path:
        return self.path / "start.json"

    @property
    def shim_file(self) -> Path:
        return self.path / "shim.json"

    @property
    def lock_file(self) -> Path:
        return self.path / "shim.lock"

    @property
    def schedule_file(self) -> Path:
        return self.path / "deadlines.json"

    @property
    def request_file(self) -> Path:
        return self.path / "request.json"

    @property
    def shipped_file(self) -> Path:
        return self.path / "shipped.json"

    @property
    def kept_file(self) -> Path:
        return self.path / "kept.json"

    @property
    def secrets_file(self) -> Path:
        """Of a script, readable by the worker alone."""
        return self.path / "secrets.json"

    @property
    def resume_folder(self) -> Path:
        return self.path / "resume"

    @property
    def launcher_logs(self) -> Path:
        """stdout.log and stderr.log of the shim and of torchrun itself: rank -1."""
        return self.path / "logs" / "launcher"

    def order(self) -> Order | None:
        return read_model(self.order_file, Order)

    def start(self) -> Start | None:
        return read_model(self.start_file, Start)

    def shim(self) -> ShimState | None:
        return read_model(self.shim_file, ShimState)

    def schedule(self) -> Schedule | None:
        return read_model(self.schedule_file, Schedule)

    def request(self) -> Request | None:
        return read_model(self.request_file, Request)

    def exit_record(self) -> ExitRecord | None:
        """How it ended. A damaged exit.json counts as none: the attempt is then judged anew."""
        return read_model(self.exit, ExitRecord)

    def write_exit(self, record: ExitRecord) -> None:
        write_atomically(self.exit, json_bytes(record))

    def write_schedule(self, schedule: Schedule) -> None:
        write_atomically(self.schedule_file, json_bytes(schedule))

    def shim_lives(self) -> bool:
        """Whether a shim holds the lock: true until the moment it is gone, whatever its pid."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def last_step(self) -> int:
        """The step of the last whole line of metrics.jsonl; 0 where there is none."""
        try:
            with self.metrics.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL_BYTES))
                tail = file.read(TAIL_BYTES)
        except OSError:
            return 0
        whole, _, _ = tail.rpartition(b"\n")
        for line in reversed(whole.splitlines()):
            found = re.match(rb'\{"step": ?(\d{1,15})\b', line)
            if found:
                return int(found[1])
        return 0


@dataclass(frozen=True)
class NodeFolder:
    """The worker's data directory."""

    path: Path

    @property
    def identity(self) -> Path:
        return self.path / "identity.json"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    @property
    def cache(self) -> Path:
        """Datasets by content."""
        return self.path / "cache"

    def create(self) -> None:
        """Make the folders that are missing; finish a wipe that was cut short."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.attempts, self.cache):
            folder.mkdir(exist_ok=True, mode=0o700)
        for left in self.attempts.glob(".wiped-*"):
            shutil.rmtree(left)

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the folder against a second worker; yields whether that succeeded."""
        descriptor = os.open(self.path / "worker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            os.close(descriptor)

    def attempt(self, key: Key) -> Attempt:
        return Attempt(self.attempts / key.folder)

    def all_attempts(self) -> list[Attempt]:
        """Every attempt with a folder here, by job and epoch."""
        found = []
        for entry in os.scandir(self.attempts):
            if FOLDER_NAME.match(entry.name) and entry.is_dir(follow_symlinks=False):
                found.append(Attempt(Path(entry.path)))
        return sorted(found, key=lambda attempt: attempt.key)

    def begin(self, order: Order) -> Attempt:
        """Make the attempt's folder, durably: whoever finds it knows that it was taken up.

        FileExistsError where that happened before.
        """
        attempt = self.attempt(Key(order.job_id, order.epoch))
        attempt.path.mkdir(mode=0o700)
        fsync_directory(self.attempts)
        attempt.launcher_logs.mkdir(parents=True)
        return attempt

    def wiped_epochs(self) -> dict[str, int]:
        """By job, the highest epoch that was here and is gone. Unreadable: none known."""
        wiped = read_model(self.path / WIPED, WipedEpochs)
        return {} if wiped is None else dict(wiped.epochs)

    def wipe(self, attempt: Attempt) -> None:
        """Remove the folder; its epoch is remembered, so that it can never start again."""
        key = attempt.key
        epochs = self.wiped_epochs()
        epochs[key.job_id] = max(key.epoch, epochs.pop(key.job_id, 0))
        # The last 5,000 jobs: an older one cannot come back with an old epoch.
        recent = dict(list(epochs.items())[-5000:])
        write_atomically(self.path / WIPED, json_bytes(WipedEpochs(epochs=recent)))
        doomed = attempt.path.with_name(f".wiped-{key.folder}")
        attempt.path.rename(doomed)
        shutil.rmtree(doomed)


class WipedEpochs(Kept):
    """wiped.json, oldest job first."""

    epochs: dict[str, int]


def read_model(path: Path, model: type[Stored]) -> Stored | None:
    """The file as `model`; None where it is absent, unreadable or garbage (which is logged)."""
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        log.warning("unreadable_file", path=str(path), error=str(error)[:500])
        return None
