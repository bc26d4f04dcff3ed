"""Preparation of an attempt: the files that it reads on this node's disk, then plan.json, last.

Runs in a thread of its own per attempt, because a download may take long; the heartbeat goes on
meanwhile and shows `message`. A permanent failure becomes an exit record `start_failed`.
"""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from core.base import tracing
from core.base.clock import boot_s
from core.base.words import size_text
from core.spec.script import Script
from core.spec.workbench import Workbench
from core.states import Outcome
from core.wire.messages import FileRef, Order, Resume, Secrets
from strategies.plan.built_in.datasets import prepare
from strategies.plan.durable_files import json_bytes, sha256_of, write_atomically
from strategies.plan.planner import Plan
from strategies.plan.run_directory import (
    BadCheckpoint,
    MixedDataset,
    RunPlan,
    checkpoint_name,
    verify_checkpoint,
)
from strategies.plan.spec import TrainSpec
from worker.node.api_client import ApiClient
from worker.node.attempts import Attempt, NodeFolder
from worker.node.boot import boot_id
from worker.node.proven import needs_preflight
from worker.preparing.fetching import Fetcher, FetchRate
from worker.preparing.placing_workspace import place_workspace
from worker.preparing.preparing_script import CannotStart, ScriptHost, program_run
from worker.scripts.script_run import ProgramRun
from worker.workspaces.folders import WorkspaceMount


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
        rate: FetchRate,
        whole_tokens_gib: float,
        done: Callable[[], None],
    ) -> None:
        super().__init__(name=f"prepare-{attempt.path.name}", daemon=True)
        self.folder, self.attempt, self.order = folder, attempt, order
        self.host, self.done = host, done
        self.gpu_devices = gpu_devices
        self.whole_tokens_gib = whole_tokens_gib
        self.cancelled = threading.Event()
        self.message = "Preparing."
        self.fetcher = Fetcher(
            folder.cache,
            new_client=new_client,
            rate=rate,
            cancelled=self.cancelled,
            tell=self._tell,
        )
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
            self.fetcher.close()
            self.done()

    def prepare(self) -> None:
        """Write plan.json to the attempt's folder. Raises CannotStart, or OSError of the disk."""
        plan: RunPlan | ProgramRun
        if isinstance(self.order.spec, Script | Workbench):
            plan = self._program()
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
            mixture=tuple(self._mixture()),
            tokenizer_path=self._tokenizer(),
            whole_tokens_gib=self.whole_tokens_gib,
            resume_from=self._checkpoint(),
            preflight=needs_preflight(
                self.folder, self.order.plan, now=boot_s(), boot_id=boot_id()
            ),
        )

    def _program(self) -> ProgramRun:
        code = self.order.code
        return program_run(
            self.order,
            self.attempt,
            None if code is None else self.fetcher.file(code, "the code"),
            host=self.host,
            gpu_devices=self.gpu_devices,
            cache=self.folder.cache,
            resume_from=self._checkpoint(),
            inputs=tuple(self.fetcher.input(one) for one in self.order.inputs),
            workspace=self._workspace(),
            fetch_secrets=self._secrets,
            tell=self._tell,
            cancelled=self.cancelled.is_set,
        )

    def _workspace(self) -> WorkspaceMount | None:
        order = self.order.workspace
        if order is None:
            return None
        is_workbench = isinstance(self.order.spec, Workbench)
        return place_workspace(
            self.attempt, order, self.fetcher, self.host, is_workbench=is_workbench
        )

    def _tell(self, message: str) -> None:
        self.message = message

    def _secrets(self) -> Secrets:
        def fetch(client: ApiClient) -> Secrets:
            return client.get_secrets(self.order.job_id, self.order.epoch)

        return self.fetcher.patiently(fetch, "its secrets")

    def _dataset(self, spec: TrainSpec) -> Path:
        """Return the dataset's file on this disk, or its folder of several; named by content so
        that a node fetches it once."""
        if self.order.dataset_files:
            return self.fetcher.folder(self.order.dataset_files, "the dataset")
        file = self.order.dataset
        if file is None:
            try:
                return prepare(spec.data.dataset, self.folder.cache)
            except ValueError as error:
                raise CannotStart(Outcome.BAD_DATA, str(error)) from error
        return self.fetcher.file(file, "the dataset")

    def _model(self) -> str | None:
        """Return the folder of the initial model, named by content so that a node fetches it
        once."""
        files = self.order.model
        return str(self.fetcher.folder(files, "the model")) if files else None

    def _mixture(self) -> Iterator[MixedDataset]:
        """Yield the datasets that are mixed in, fetched to this disk."""
        for one in self.order.mixture:
            if len(one.files) == 1:
                path = self.fetcher.file(one.files[0], "a dataset of the mixture")
            else:
                path = self.fetcher.folder(one.files, "a dataset of the mixture")
            yield MixedDataset(path=str(path), format=one.format)

    def _tokenizer(self) -> str | None:
        """Return the folder of the user's own tokenizer."""
        files = self.order.tokenizer
        return str(self.fetcher.folder(files, "the tokenizer")) if files else None

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
                self.fetcher.fetch(file, target)
            ready += file.size
        if isinstance(self.order.spec, Script | Workbench):
            return str(folder)  # each file was checked; nodes' files of one name have moved
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
