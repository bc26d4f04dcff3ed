"""Preparation of an attempt: the files that it reads on this node's disk, then plan.json, last.

Runs in a thread of its own per attempt, because a download may take long; the heartbeat goes on
meanwhile and shows `message`. A permanent failure becomes an exit record `start_failed`.
"""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from core.base import tracing
from core.base.clock import boot_s
from core.spec.inputs import InputKind
from core.spec.script import Script
from core.states import Outcome
from core.wire.messages import FileRef, InputFiles, Order, Resume, Secrets
from strategies.plan.built_in.datasets import prepare
from strategies.plan.data.corpus import BadData
from strategies.plan.planner import Plan
from strategies.plan.run_directory import (
    BadCheckpoint,
    RunPlan,
    checkpoint_name,
    json_bytes,
    sha256_of,
    verify_checkpoint,
    write_atomically,
)
from strategies.plan.spec import TrainSpec
from worker.api_client import ApiClient, DamagedFile, RequestRefused, Unreachable
from worker.attempts import Attempt, NodeFolder
from worker.boot import boot_id
from worker.preparing.proven import needs_preflight
from worker.scripts.idx_files import write_idx
from worker.scripts.inputs import InputMount, file_entry, folder_entry, let_read, mount_of
from worker.scripts.preparing_script import CannotStart, ScriptHost, script_run
from worker.scripts.script_run import ScriptRun
from worker.shipping.cache import touch

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
FETCH_TRIES = 3  # of one file that arrives damaged
GIB = 1 << 30
MAKING: dict[Path, threading.Lock] = {}
"""Lock of each entry of the cache that was ever made by this process."""

log = structlog.get_logger()
Fetched = TypeVar("Fetched")


class Preparation(threading.Thread):
    """Preparation of one attempt. `failure` is set if it failed."""

    def __init__(
        self,
        folder: NodeFolder,
        attempt: Attempt,
        order: Order,
        *,
        host: ScriptHost,
        gpu_devices: tuple[int, ...],
        new_client: Callable[[], ApiClient],
        done: Callable[[], None],
    ) -> None:
        super().__init__(name=f"prepare-{attempt.path.name}", daemon=True)
        self.folder, self.attempt, self.order = folder, attempt, order
        self.host, self.new_client, self.done = host, new_client, done
        self.gpu_devices = gpu_devices
        self.client: ApiClient | None = None
        self.cancelled = threading.Event()
        self.message = "Preparing."
        self.failure: CannotStart | None = None

    def run(self) -> None:
        """Prepare; then wake the agent."""
        try:
            with tracing.span(
                "prepare",
                parent=self.order.traceparent,
                job=self.order.job_id,
                epoch=self.order.epoch,
            ):
                self.prepare()
        except CannotStart as failure:
            self.failure = failure
        except OSError as error:
            self.failure = CannotStart(
                Outcome.START_FAILED, f"The node's disk failed: {error.strerror or error}."
            )
        finally:
            if self.client is not None:
                self.client.close()
            self.done()

    def prepare(self) -> None:
        """Write plan.json to the attempt's folder. Raises CannotStart, or OSError of the disk."""
        plan: RunPlan | ScriptRun
        if isinstance(self.order.spec, Script):
            plan = self._script()
        else:
            plan = self._training(self.order.spec)
        if not self.cancelled.is_set():
            write_atomically(self.attempt.plan, json_bytes(plan))

    def _training(self, spec: TrainSpec) -> RunPlan:
        assert isinstance(self.order.plan, Plan)
        return RunPlan(
            spec=spec,
            plan=self.order.plan,
            dataset_path=str(self._dataset(spec)),
            dataset_format=self.order.dataset_format,
            model_path=self._model(),
            resume_from=self._checkpoint(),
            preflight=needs_preflight(
                self.folder, self.order.plan, now=boot_s(), boot_id=boot_id()
            ),
        )

    def _script(self) -> ScriptRun:
        code = self.order.code
        assert code is not None
        return script_run(
            self.order,
            self.attempt,
            self._cached_file(code, "the code"),
            host=self.host,
            gpu_devices=self.gpu_devices,
            cache=self.folder.cache,
            resume_from=self._checkpoint(),
            inputs=tuple(self._input(one) for one in self.order.inputs),
            fetch_secrets=self._secrets,
            tell=self._tell,
            cancelled=self.cancelled.is_set,
        )

    def _tell(self, message: str) -> None:
        self.message = message

    def _secrets(self) -> Secrets:
        def fetch(client: ApiClient) -> Secrets:
            return client.get_secrets(self.order.job_id, self.order.epoch)

        return self._patiently(fetch, "its secrets")

    def _dataset(self, spec: TrainSpec) -> Path:
        """Return the dataset's file on this disk, named by content so that a node fetches it
        once."""
        file = self.order.dataset
        if file is None:
            try:
                return prepare(spec.data.dataset, self.folder.cache)
            except ValueError as error:
                raise CannotStart(Outcome.BAD_DATA, str(error)) from error
        return self._cached_file(file, "the dataset")

    def _model(self) -> str | None:
        """Return the folder of the initial model, named by content so that a node fetches it
        once."""
        files = self.order.model
        return str(self._cached_folder(files, "the model")) if files else None

    def _input(self, one: InputFiles) -> InputMount:
        """Return the mount of a script's input, whose files are on this disk now."""
        if one.kind is InputKind.DATASET:
            entry = self._cached_file(one.files[0], f"the input {one.name}")
        else:
            entry = self._cached_folder(one.files, f"the input {one.name}")
        let_read(entry)
        mount = mount_of(self.folder.cache, one)
        if mount.images is not None:
            images = Path(mount.images)
            touch(images)
            try:
                self._once(images, lambda: write_idx(entry, images))
            except BadData as error:
                raise CannotStart(Outcome.BAD_DATA, f"The input {one.name} {error}.") from error
            let_read(images)
        return mount

    def _cached_file(self, file: FileRef, what: str) -> Path:
        """Return the cache entry of a file, fetched unless it is there."""
        entry = file_entry(self.folder.cache, file.sha256)
        touch(entry)
        if not entry.exists():
            self.message = f"Fetching {what} ({size_text(file.size)})."
            self._fetch_once(file, entry)
        return entry

    def _cached_folder(self, files: Sequence[FileRef], what: str) -> Path:
        """Return the cache entry of a folder of files, each fetched unless it is there."""
        entry = folder_entry(self.folder.cache, files)
        entry.mkdir(exist_ok=True)
        touch(entry)
        total, ready = sum(file.size for file in files), 0
        for file in files:
            self.message = f"Fetching {what}: {size_text(ready)} of {size_text(total)}."
            self._fetch_once(file, entry / file.path)
            ready += file.size
        return entry

    def _fetch_once(self, file: FileRef, target: Path) -> None:
        """Fetch a file of the cache unless it is there."""
        self._once(target, lambda: self._fetch(file, target))

    def _once(self, target: Path, make: Callable[[], None]) -> None:
        """Make an entry of the cache unless it is there; attempts that need the same one wait for
        each other."""
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

    def _checkpoint(self) -> str | None:
        """Return the checkpoint to resume from: of an earlier attempt on this node, or fetched."""
        resume = self.order.resume
        if resume is None:
            return None
        folder = self.attempt.resume_folder / checkpoint_name(resume.step)
        folder.mkdir(parents=True, exist_ok=True)
        total = sum(file.size for file in resume.files)
        ready = 0
        for file in resume.files:
            self.message = (
                f"Fetching the checkpoint of step {resume.step:,}: "
                f"{size_text(ready)} of {size_text(total)}."
            )
            target = folder / file.path
            if not self._have(target, file) and not self._link(resume, file, target):
                self._fetch(file, target)
            ready += file.size
        try:
            verify_checkpoint(folder)
        except BadCheckpoint as error:
            raise CannotStart(Outcome.BAD_CHECKPOINT, str(error)) from error
        return str(folder)

    def _link(self, resume: Resume, file: FileRef, target: Path) -> bool:
        """Link the file from an earlier attempt of this job that ran here, if its hash is right."""
        name = checkpoint_name(resume.step)
        for earlier in self.folder.all_attempts():
            if earlier.key.job_id != self.order.job_id or earlier.path == self.attempt.path:
                continue
            source = earlier.checkpoints / name / file.path
            if self._have(source, file):
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(source, target)
                return True
        return False

    @staticmethod
    def _have(path: Path, file: FileRef) -> bool:
        try:
            return path.stat().st_size == file.size and sha256_of(path) == file.sha256
        except FileNotFoundError:
            return False

    def _fetch(self, file: FileRef, target: Path) -> None:
        """Fetch a file, retrying as long as the attempt is wanted."""
        self._patiently(lambda client: client.get_file(file, target), file.path)

    def _patiently(self, fetch: Callable[[ApiClient], Fetched], what: str) -> Fetched:
        """Return the result of `fetch`, retrying as long as the attempt is wanted."""
        client = self.client = self.client or self.new_client()
        pause_s, damaged = FIRST_PAUSE_S, 0
        while True:
            try:
                return fetch(client)
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
                self.message = f"The store cannot be reached; trying again: {error}"[:300]
            if self.cancelled.wait(pause_s):
                raise CannotStart(Outcome.CANCELLED, "The job was stopped before it started.")
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def size_text(size: int) -> str:
    """Return a size such as `1.2 GiB` or `340 KiB`."""
    if size >= GIB:
        return f"{size / GIB:.1f} GiB"
    if size >= 1 << 20:
        return f"{size / (1 << 20):.1f} MiB"
    return f"{size / 1024:.0f} KiB"
