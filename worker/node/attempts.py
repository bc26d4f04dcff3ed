"""Folder of an attempt on this node: the run directory, and files that only the worker uses.

attempts/<job>.<epoch>/ is also the start token: it is created once, synced to disk, and never
created again for an epoch that was wiped. Files that cannot be read count as absent, each with the
consequence that its reader states.
"""

import fcntl
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.spec.spec import Launcher
from core.states import Outcome
from core.wire.messages import ExitRecord, HostUse, Order, Rendezvous, Request
from strategies.plan.durable_files import fsync_directory, json_bytes, write_atomically
from strategies.plan.run_directory import RunDirectory

FOLDER_NAME = re.compile(r"^([A-Za-z0-9_-]{1,80})\.(\d{1,9})$")
WIPED = "wiped.json"
KERNELS = "kernels"
LOG_BYTES = 128 << 20  # per stream of each rank, kept on the disk and sent to the API
LOCK_PAUSE_S = 0.001
TAIL_BYTES = 16_384  # read of metrics.jsonl to find the last step: a line has some 300 bytes

log = structlog.get_logger()
Stored = TypeVar("Stored", bound=BaseModel)


class Key(NamedTuple):
    """Name of one attempt."""

    job_id: str
    epoch: int

    @property
    def folder(self) -> str:
        return f"{self.job_id}.{self.epoch}"


class StateFile(BaseModel):
    """Base of the worker's own small files."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Share(StateFile):
    """Share of a node that other owners use too: that of some of its slots."""

    cpus: list[int] = Field(min_length=1)
    """Processors of these slots."""
    slots: int = Field(ge=1)
    slots_of_node: int = Field(ge=1)

    @property
    def part(self) -> Fraction:
        """Part of the node's memory, up to 1."""
        return min(Fraction(1), Fraction(self.slots, self.slots_of_node))


class StartFile(StateFile):
    """Content of start.json: instructions for the shim, written by the agent before it asks for
    one."""

    job_id: str
    epoch: int
    node: str
    trainer: str
    """Module whose main(argv) is one rank."""
    launcher: Launcher
    launcher_reason: str = ""
    """Reason why it is torchrun where the job did not ask for torchrun."""
    ranks: int = Field(ge=1)
    """Number of ranks on this node."""
    threads: int = Field(ge=1)
    """Threads of each rank."""
    script: bool = False
    """True if plan.json is a program's, a script's or a workbench's; there is no trainer."""
    workbench: bool = False
    """True if it is a workbench's."""
    gpus: list[str] = []
    """UUIDs of the GPUs or MIG instances that the ranks may see, in order; empty without GPUs."""
    nodes: int = Field(default=1, ge=1)
    position: int = Field(default=0, ge=0)
    """Position of this node among them."""
    rendezvous: Rendezvous | None = None
    """Meeting point of the ranks of several nodes."""
    interface: str = ""
    """Network interface that leads to the other nodes, if there are any."""
    log_bytes: int = Field(default=LOG_BYTES, ge=4096)
    """Bytes kept of each stream of each rank: of a longer one its first and its last half."""
    memory_bytes: int | None = Field(default=None, ge=1)
    """Memory limit of all its processes here; None: as much as the machine has."""
    share: Share | None = None
    """Share of the node that its processes are kept to; None: the node is its owner's alone."""

    @property
    def global_ranks(self) -> range:
        """Global numbers of the ranks on this node."""
        return range(self.position * self.ranks, (self.position + 1) * self.ranks)


class ShimState(StateFile):
    """Content of shim.json: the shim that owns the attempt.

    It is created exclusively: the second shim of an attempt finds it and exits.
    """

    pid: int
    boot_id: str
    launcher: Launcher
    began_s: float
    """Start time on the boot clock."""
    cgroup: str | None = None
    """Path of the attempt's cgroup, if the machine allows one.

    A later worker may run in another.
    """


class DeadlinesFile(StateFile):
    """Content of deadlines.json: times of the shim's actions, on the boot clock of `boot_id`."""

    boot_id: str
    checkpoint_at: float
    stop_at: float
    """Time at which control.json asks the ranks to save and stop."""
    term_at: float
    kill_at: float
    reason: Outcome
    ordered: bool = False
    """True if the stop was ordered; it is then not postponed."""


class HeldFile(StateFile):
    """Content of held.json: the judgement of an attempt that has failed and whose sandbox is held
    for its owner, and the end of the hold on the boot clock."""

    until: float
    outcome: Outcome
    reason: str
    culprit_rank: int | None
    signal: int | None
    code: int | None
    guilt: int | None


class NetworkFile(StateFile):
    """Content of network.json: the hosts that a program may reach, as last ordered."""

    reach: tuple[str, ...]


class HostsFile(StateFile):
    """Content of hosts.json: the use that an attempt has made of each host."""

    hosts: tuple[HostUse, ...]


class Attempt(RunDirectory):
    """Paths and files of one attempt on this node."""

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
        """Secrets of a script, readable by the worker alone."""
        return self.path / "secrets.json"

    @property
    def network_file(self) -> Path:
        return self.path / "network.json"

    @property
    def hosts_file(self) -> Path:
        return self.path / "hosts.json"

    @property
    def ready_file(self) -> Path:
        """File that exists once a workbench can be entered."""
        return self.path / "ready"

    @property
    def held_file(self) -> Path:
        """File that exists once it has failed and its sandbox is held."""
        return self.path / "held.json"

    @property
    def resume_folder(self) -> Path:
        return self.path / "resume"

    @property
    def kernels(self) -> Path:
        """The node's cache of compiled kernels."""
        return NodeFolder(self.path.parents[1]).kernels

    @property
    def launcher_logs(self) -> Path:
        """Folder of stdout.log and stderr.log of the shim and of torchrun itself: rank -1."""
        return self.path / "logs" / "launcher"

    def order(self) -> Order | None:
        return read_model(self.order_file, Order)

    def start(self) -> StartFile | None:
        return read_model(self.start_file, StartFile)

    def shim(self) -> ShimState | None:
        return read_model(self.shim_file, ShimState)

    def schedule(self) -> DeadlinesFile | None:
        return read_model(self.schedule_file, DeadlinesFile)

    def request(self) -> Request | None:
        return read_model(self.request_file, Request)

    def held(self) -> HeldFile | None:
        return read_model(self.held_file, HeldFile)

    def hosts(self) -> tuple[HostUse, ...]:
        """Return the use of each host so far."""
        found = read_model(self.hosts_file, HostsFile)
        return () if found is None else found.hosts

    def write_hosts(self, hosts: tuple[HostUse, ...]) -> None:
        write_atomically(self.hosts_file, json_bytes(HostsFile(hosts=hosts)))

    def exit_record(self) -> ExitRecord | None:
        """Return the attempt's end.

        A damaged exit.json counts as none: the attempt is judged again.
        """
        return read_model(self.exit, ExitRecord)

    def write_held(self, held: HeldFile) -> None:
        write_atomically(self.held_file, json_bytes(held))

    def write_exit(self, record: ExitRecord) -> None:
        write_atomically(self.exit, json_bytes(record))

    def write_schedule(self, schedule: DeadlinesFile) -> None:
        self._tell_shim(self.schedule_file, schedule)

    def write_request(self, request: Request) -> None:
        self._tell_shim(self.request_file, request)

    def write_network(self, network: NetworkFile) -> None:
        self._tell_shim(self.network_file, network)

    def _tell_shim(self, file: Path, content: BaseModel) -> None:
        """Write a file that the shim reads, and wake it: by itself it only looks now and then.

        SIGCHLD wakes it, and does nothing to another process that has its pid by now.
        """
        write_atomically(file, json_bytes(content))
        shim = self.shim()
        if shim is not None:
            with suppress(OSError):
                os.kill(shim.pid, signal.SIGCHLD)

    def shim_lives(self) -> bool:
        """Return True if a shim holds the lock, which it does until it is gone, whatever its
        pid.

        To find out, the lock is shared for a moment with whoever else wants to know.
        """
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def wait_for_shim(self) -> None:
        """Return when no shim lives, or as soon as that cannot be found out."""
        with suppress(OSError), self.lock_file.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)

    def take_lock(self) -> int | None:
        """Return the descriptor of the lock, now held; None if another shim has it or had it.

        Another shim writes shim.json at once. As long as there is none, the lock is held by
        somebody who asks `shim_lives` at this moment, and is soon free.
        """
        lock = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while not self.shim_file.exists():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                time.sleep(LOCK_PAUSE_S)
        os.close(lock)
        return None

    def last_step(self) -> int:
        """Return the step of the last whole line of metrics.jsonl; 0 if there is none."""
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


Glance = list[tuple[Key, int, bool]]
"""Last change of each attempt's folder, in ns, and True if its shim lives."""


@dataclass(frozen=True)
class NodeFolder:
    """Data directory of the worker."""

    path: Path

    @property
    def identity(self) -> Path:
        return self.path / "identity.json"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    @property
    def gpus(self) -> Path:
        """File with the node's GPUs in order of slots."""
        return self.path / "gpus.json"

    @property
    def speeds(self) -> Path:
        """File with the measured speeds of GPUs whose data sheet is not known."""
        return self.path / "speeds.json"

    @property
    def cache(self) -> Path:
        """Folder of datasets, models and environments, named by content."""
        return self.path / "cache"

    @property
    def kernels(self) -> Path:
        """Entry of the cache that holds what torch.compile and Triton have compiled here."""
        return self.cache / KERNELS

    def take_kernels(self) -> None:
        """Create the cache of compiled kernels, or note that it is used now."""
        self.kernels.mkdir(exist_ok=True, mode=0o700)
        os.utime(self.kernels)

    def create(self) -> None:
        """Create the folders that are missing; finish a wipe that was cut short."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.attempts, self.cache):
            folder.mkdir(exist_ok=True, mode=0o700)
        for left in self.attempts.glob(".wiped-*"):
            shutil.rmtree(left)

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Lock the folder against a second worker; yield True if that succeeded."""
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
        """Return every attempt with a folder here, by job and epoch."""
        found = []
        for entry in os.scandir(self.attempts):
            if FOLDER_NAME.match(entry.name) and entry.is_dir(follow_symlinks=False):
                found.append(Attempt(Path(entry.path)))
        return sorted(found, key=lambda attempt: attempt.key)

    def glance(self) -> Glance:
        """Return what changes when an attempt comes or goes, when a file appears in the folder of
        one, is replaced or removed, and when a shim ends."""
        found = []
        for attempt in self.all_attempts():
            with suppress(FileNotFoundError):  # wiped meanwhile
                changed_ns = attempt.path.stat().st_mtime_ns
                found.append((attempt.key, changed_ns, attempt.shim_lives()))
        return found

    def begin(self, order: Order) -> Attempt:
        """Create the attempt's folder, durably: its existence means that the attempt was taken up.

        Raises FileExistsError if that happened before.
        """
        attempt = self.attempt(Key(order.job_id, order.epoch))
        attempt.path.mkdir(mode=0o700)
        fsync_directory(self.attempts)
        attempt.launcher_logs.mkdir(parents=True)
        return attempt

    def wiped_epochs(self) -> dict[str, int]:
        """Return by job the highest epoch that was here and is gone; empty if the file is
        unreadable."""
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


class WipedEpochs(StateFile):
    """Content of wiped.json, oldest job first."""

    epochs: dict[str, int]


def read_model(path: Path, model: type[Stored]) -> Stored | None:
    """Read the file as `model`; None if it is absent, unreadable or invalid (which is logged)."""
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        log.warning("unreadable_file", path=str(path), error=str(error)[:500])
        return None
