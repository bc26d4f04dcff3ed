"""Fetching of files from the store into the node's cache, each once, and the rate of it.

Attempts that start together, and what is fetched ahead of a lease, wait for each other where they
need the same file.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from core.base.words import size_text
from core.states import Outcome
from core.wire.messages import FileRef, InputFiles, PackagesAhead
from strategies.plan.data.reading import BadData
from worker.node.api_client import ApiClient, DamagedFile, RequestRefused, Unreachable
from worker.preparing.cache import touch
from worker.preparing.environments import CannotBuild, build, requirements_in
from worker.preparing.preparing_script import CannotStart, ScriptHost, package_proxy
from worker.scripts.inputs import InputMount, file_entry, folder_entry, let_read, mount_of

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
FETCH_TRIES = 3  # of one file that arrives damaged
AGAIN_S = 600.0  # well below the hour for which the cache keeps what is not in use
RATED_BYTES = 8 << 20  # a smaller file shows the latency, not the rate
MAKING: dict[Path, threading.Lock] = {}
"""Lock of each entry of the cache that was ever made by this process."""

log = structlog.get_logger()
Fetched = TypeVar("Fetched")


class FetchRate:
    """Bytes per second at which the last large file came, hash and disk included; None so far."""

    bytes_per_s: float | None = None

    def note(self, size: int, seconds: float) -> None:
        """Take the rate of a fetch, if it was large enough to show one."""
        if size >= RATED_BYTES and seconds > 0:
            self.bytes_per_s = size / seconds


class Fetcher:
    """Fetcher for one purpose, which may be cancelled."""

    def __init__(
        self,
        cache: Path,
        *,
        new_client: Callable[[], ApiClient],
        rate: FetchRate,
        cancelled: threading.Event,
        tell: Callable[[str], None],
    ) -> None:
        self.cache, self.new_client, self.rate = cache, new_client, rate
        self.cancelled, self.tell = cancelled, tell
        self.client: ApiClient | None = None

    def close(self) -> None:
        """Close the connections."""
        if self.client is not None:
            self.client.close()

    def input(self, one: InputFiles) -> InputMount:
        """Return the mount of an input, whose files are on this disk now."""
        if one.is_file:
            entry = self.file(one.files[0], f"the input {one.name}")
        else:
            entry = self.folder(one.files, f"the input {one.name}")
        let_read(entry)
        mount = mount_of(self.cache, one)
        if mount.images is not None:
            from worker.preparing.idx_files import write_idx  # needs numpy: 8 MiB at rest

            images = Path(mount.images)
            touch(images)
            try:
                self._once(images, lambda: write_idx(entry, images))
            except BadData as error:
                raise CannotStart(Outcome.BAD_DATA, f"The input {one.name} {error}.") from error
            let_read(images)
        return mount

    def file(self, file: FileRef, what: str) -> Path:
        """Return the cache entry of a file, fetched unless it is there."""
        entry = file_entry(self.cache, file.sha256)
        touch(entry)
        if not entry.exists():
            self.tell(f"Fetching {what} ({size_text(file.size)}).")
            self._fetch_once(file, entry)
        return entry

    def folder(self, files: Sequence[FileRef], what: str) -> Path:
        """Return the cache entry of a folder of files, each fetched unless it is there."""
        entry = folder_entry(self.cache, files)
        entry.mkdir(exist_ok=True)
        touch(entry)
        total, ready = sum(file.size for file in files), 0
        for file in files:
            self.tell(f"Fetching {what}: {size_text(ready)} of {size_text(total)}.")
            self._fetch_once(file, entry / file.path)
            ready += file.size
        return entry

    def fetch(self, file: FileRef, target: Path) -> None:
        """Fetch a file, retrying as long as it is wanted."""
        began = time.monotonic()
        self.patiently(lambda client: client.get_file(file, target), file.path)
        self.rate.note(file.size, time.monotonic() - began)

    def patiently(self, ask: Callable[[ApiClient], Fetched], what: str) -> Fetched:
        """Return the result of `ask`, retrying as long as it is wanted."""
        client = self.client = self.client or self.new_client()
        pause_s, damaged = FIRST_PAUSE_S, 0
        while True:
            try:
                return ask(client)
            except RequestRefused as refusal:
                raise CannotStart(
                    Outcome.START_FAILED, f"The store refused {what}: {refusal.detail}"
                ) from refusal
            except DamagedFile as error:
                damaged += 1
                if damaged >= FETCH_TRIES:
                    raise CannotStart(Outcome.START_FAILED, str(error)) from error
            except Unreachable as error:
                log.info("fetch_interrupted", file=what, error=str(error))
                self.tell(f"The store cannot be reached; trying again: {error}"[:300])
            if self.cancelled.wait(pause_s):
                raise CannotStart(Outcome.CANCELLED, "The job was stopped before it started.")
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _fetch_once(self, file: FileRef, target: Path) -> None:
        self._once(target, lambda: self.fetch(file, target))

    def _once(self, target: Path, make: Callable[[], None]) -> None:
        """Make an entry of the cache, or a file of one, unless it is there."""
        if target.exists():  # it has its final name only once it is complete
            return
        lock = MAKING.setdefault(target, threading.Lock())
        while not lock.acquire(timeout=FIRST_PAUSE_S):
            if self.cancelled.is_set():
                raise CannotStart(Outcome.CANCELLED, "The job was stopped before it started.")
        try:
            if not target.exists():
                make()
        finally:
            lock.release()


class FetchingAhead(threading.Thread):
    """Fetching of inputs, and building of environments, whose job has a booked lease here that has
    not begun yet."""

    def __init__(
        self,
        cache: Path,
        inputs: Sequence[InputFiles],
        packages: Sequence[PackagesAhead] = (),
        *,
        host: ScriptHost,
        new_client: Callable[[], ApiClient],
        rate: FetchRate,
    ) -> None:
        super().__init__(name="fetch-ahead", daemon=True)
        self.inputs, self.packages = list(inputs), list(packages)
        self.cache, self.host, self.cancelled = cache, host, threading.Event()
        self.began = time.monotonic()
        self.fetcher = Fetcher(
            cache, new_client=new_client, rate=rate, cancelled=self.cancelled, tell=log.debug
        )

    def is_fresh(self, inputs: Sequence[InputFiles], packages: Sequence[PackagesAhead]) -> bool:
        """Return True if it was for the same, not long ago."""
        same = (self.inputs, self.packages) == (list(inputs), list(packages))
        return same and time.monotonic() - self.began < AGAIN_S

    def run(self) -> None:
        """Fetch and build in order; what fails is left to the job's own attempt, which tells its
        owner why."""
        try:
            for one in self.inputs:
                try:
                    self.fetcher.input(one)
                    log.info("fetched_ahead", input=one.name, files=len(one.files))
                except CannotStart as failure:
                    log.info("not_fetched_ahead", input=one.name, reason=failure.reason)
            for wanted in self.packages:
                self._build(wanted)
        except OSError as error:
            log.error("disk_error", action="fetch_ahead", error=str(error))
        finally:
            self.fetcher.close()

    def _build(self, wanted: PackagesAhead) -> None:
        try:
            folder = build(
                requirements_in(wanted.requirements, "requirements.txt"),
                self.cache,
                wheels=self.host.wheels,
                say=log.debug,
                cancelled=self.cancelled.is_set,
                proxy=package_proxy(wanted.network, self.host, keep=lambda _: None),
            )
            log.info("built_ahead", environment=folder.name)
        except CannotBuild as error:
            log.info("not_built_ahead", reason=str(error))
