"""Upload of every finished checkpoint, and after the exit of every artifact, to the store.

A file travels under its hash: a file that the store has is not sent again, and an interrupted
transfer starts again at the file it was cut in. A checkpoint is verified before it is sent and
reported once all its files are there. Only then may the run directory be wiped.
"""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from core.wire.messages import ArtifactReport, CheckpointReport, FileRef, RelativePath
from strategies.plan.durable_files import json_bytes, sha256_of, write_atomically
from strategies.plan.run_directory import (
    BadCheckpoint,
    finished_checkpoints,
    manifest_name,
    read_manifest,
    verify_part,
)
from worker.node.api_client import ApiClient, RequestRefused, Unreachable
from worker.node.attempts import Attempt, NodeFolder, read_model
from worker.shipping.spool import ShippedPositions
from worker.workspaces.folders import WorkspaceFiles

LOOK_EVERY_S = 2.0  # for finished checkpoints; at the end of an attempt a nudge comes
LONGEST_PAUSE_S = 30.0
REFUSED_PAUSE_S = 10.0
SENDABLE_PATH: TypeAdapter[str] = TypeAdapter(RelativePath)

log = structlog.get_logger()


class KeptState(BaseModel):
    """Content of kept.json: acknowledgements of the API.

    If it is lost, everything is offered again.
    """

    model_config = ConfigDict(extra="ignore")

    checkpoints: list[int] = []
    artifacts: list[str] = []
    complete: bool = False
    """True if an attempt has exited and its metrics, logs, checkpoints and artifacts are stored."""


@dataclass
class Keeper:
    """Uploader of one file at a time, for all attempts of this node.

    Runs in a thread of its own.
    """

    folder: NodeFolder
    client: ApiClient
    nudge: threading.Event
    stop: threading.Event
    kept: threading.Event
    """Event that is set when everything of an attempt is stored."""
    unsendable: set[Path] = field(default_factory=set)
    refused_until: dict[Path, float] = field(default_factory=dict)

    def run(self) -> None:
        """Upload until `stop` is set; an interrupted upload is started again by the next worker."""
        failures = 0
        while not self.stop.is_set():
            try:
                for attempt in self.folder.all_attempts():
                    self.keep(attempt)
                failures = 0
            except Unreachable as error:
                failures += 1
                if failures == 1:
                    log.info("keeper_waits", error=str(error)[:300])
            self.nudge.wait(min(LOOK_EVERY_S * 2.0**failures, LONGEST_PAUSE_S))
            self.nudge.clear()
        self.client.close()

    def keep(self, attempt: Attempt) -> None:
        """Send the finished files of one attempt."""
        state = read_model(attempt.kept_file, KeptState) or KeptState()
        if state.complete:
            return
        exited = attempt.exit.exists()
        if time.monotonic() < self.refused_until.get(attempt.path, 0.0):
            return
        try:
            self._keep_checkpoints(attempt, state)
            if exited:
                self._keep_artifacts(attempt, state)
                shipped = read_model(attempt.shipped_file, ShippedPositions)
                is_shipped = shipped is not None and shipped.complete
                if is_shipped and WorkspaceFiles(attempt).is_kept:
                    self._complete(attempt, state)
        except RequestRefused as refusal:
            if refusal.is_final and exited:
                log.info("files_not_wanted", attempt=attempt.path.name, detail=refusal.detail)
                self._complete(attempt, state)
            else:
                if not refusal.is_final:
                    log.error("files_refused", attempt=attempt.path.name, detail=str(refusal))
                self.refused_until[attempt.path] = time.monotonic() + REFUSED_PAUSE_S
        except OSError as error:  # from the disk: this attempt waits, the others go on
            log.warning("disk_error", attempt=attempt.path.name, error=str(error))

    def _complete(self, attempt: Attempt, state: KeptState) -> None:
        state.complete = True
        write_atomically(attempt.kept_file, json_bytes(state))
        self.kept.set()

    def _keep_checkpoints(self, attempt: Attempt, state: KeptState) -> None:
        """Send the oldest first, so that an interruption leaves at least an earlier one in the
        store."""
        start = attempt.start()
        node, is_gang = (0, False) if start is None else (start.position, start.nodes > 1)
        is_script_gang = is_gang and start is not None and start.script
        for folder in reversed(finished_checkpoints(attempt.checkpoints)):
            step = int(folder.name.rpartition("-")[2])
            if step in state.checkpoints or folder in self.unsendable:
                continue
            try:
                files = self._files_of(folder, node)
                for file in files:
                    self._put(folder / file.path, file.sha256)
            except BadCheckpoint as error:
                if folder.exists():
                    log.error("bad_checkpoint", folder=str(folder), error=str(error))
                    self.unsendable.add(folder)
                continue
            except FileNotFoundError:
                continue  # the training has deleted it meanwhile, as its keep_last asks
            key = attempt.key
            self.client.report_checkpoint(
                CheckpointReport(
                    job_id=key.job_id,
                    epoch=key.epoch,
                    step=step,
                    files=files,
                    of_one_node=is_script_gang and read_manifest(folder, node).num_nodes == 1,
                )
            )
            state.checkpoints.append(step)
            write_atomically(attempt.kept_file, json_bytes(state))
            log.info("checkpoint_kept", attempt=attempt.path.name, step=step)

    @staticmethod
    def _files_of(checkpoint: Path, node: int) -> list[FileRef]:
        """Return the files that this node wrote, its manifest included, after checking their
        hashes."""
        manifest = verify_part(checkpoint, node)
        path = checkpoint / manifest_name(node)
        files = [FileRef(path=f.path, sha256=f.sha256, size=f.size) for f in manifest.files]
        own = FileRef(path=path.name, sha256=sha256_of(path), size=path.stat().st_size)
        return [*files, own]

    def _keep_artifacts(self, attempt: Attempt, state: KeptState) -> None:
        for path in sorted(attempt.artifacts.rglob("*")):
            name = path.relative_to(attempt.artifacts).as_posix()
            if path.is_symlink() or not path.is_file() or path in self.unsendable:
                continue
            if name in state.artifacts:
                continue
            try:
                SENDABLE_PATH.validate_python(name)
            except ValidationError:
                log.warning("artifact_left_out", path=str(path), reason="its name")
                self.unsendable.add(path)
                continue
            sha256 = sha256_of(path)
            self._put(path, sha256)
            key = attempt.key
            file = FileRef(path=name, sha256=sha256, size=path.stat().st_size)
            self.client.report_artifact(
                ArtifactReport(job_id=key.job_id, epoch=key.epoch, file=file)
            )
            state.artifacts.append(name)
            write_atomically(attempt.kept_file, json_bytes(state))

    def _put(self, path: Path, sha256: str) -> None:
        if not self.client.has_file(sha256):
            self.client.put_file(path, sha256)
