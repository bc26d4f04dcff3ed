"""Keeper of workspaces: brings what programs change to the store, at a period and at the end.
What lies in the site's shared folder is not brought: only its amount is told.

A snapshot counts once all of its contents are in the store and the API has named them: a crash
anywhere leaves the last whole one. Between, nothing is lost but time: the next worker looks again.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from core.base.clock import boot_s
from core.wire.messages import MissingQuery, SharedLook, SnapshotAck, SnapshotReport, StoredBlob
from core.wire.workspace_tree import Blob
from strategies.plan.durable_files import json_bytes, write_atomically
from worker.node.api_client import ApiClient, RequestRefused, Unreachable
from worker.node.attempts import Attempt, NodeFolder
from worker.workspaces.apart import Found, Looking, Summing, look_apart, sum_up_apart
from worker.workspaces.folders import WorkspaceFiles, WorkspaceState

TICK_S = 0.5
IDLE_S = 2.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
ASKED_AT_ONCE = 10_000  # hashes

log = structlog.get_logger()


@dataclass
class Pace:
    """Time of the next look at an attempt's workspace; forgotten with this process."""

    next_at: float = 0.0
    failures: int = 0
    has_seen_stop: bool = False
    told: str = ""
    """Sentence that its owner's log has last."""


@dataclass
class WorkspaceKeeper:
    """Keeper of the workspaces on this node, in a thread of its own."""

    folder: NodeFolder
    client: ApiClient
    every_s: float
    nudge: threading.Event
    stop: threading.Event
    kept: Callable[[], None]
    """Called when a workspace was kept for the last time."""
    paces: dict[Path, Pace] = field(default_factory=dict)

    def run(self) -> None:
        """Keep until `stop` is set."""
        while not self.stop.is_set():
            busy = False
            for attempt in self.folder.all_attempts():
                busy |= self.keep(attempt)
            self.nudge.wait(TICK_S if busy else IDLE_S)
            self.nudge.clear()
        self.client.close()

    def keep(self, attempt: Attempt) -> bool:
        """Keep an attempt's workspace if it is time; return False if there is nothing to keep."""
        files = WorkspaceFiles(attempt)
        if files.is_kept:
            self.paces.pop(attempt.path, None)
            return False
        state = files.state()
        if state is None:
            return False  # damaged: the attempt waits for an administrator
        now = time.monotonic()
        pace = self.paces.setdefault(attempt.path, Pace(next_at=now + self.every_s))
        is_over = attempt.exit.exists()
        if not is_over and not pace.has_seen_stop and self._is_stopping(attempt):
            pace.has_seen_stop, pace.next_at = True, now
        if is_over and not pace.failures:
            pace.next_at = min(pace.next_at, now)
        if now < pace.next_at:
            return True
        try:
            self._take(files, state, pace, final=is_over)
            pace.failures, pace.next_at = 0, time.monotonic() + self.every_s
        except Unreachable as error:
            pace.failures += 1
            pause_s = min(FIRST_PAUSE_S * 2.0**pace.failures, LONGEST_PAUSE_S)
            pace.next_at = time.monotonic() + pause_s
            if pace.failures == 1:
                log.info("workspace_waits", attempt=attempt.path.name, error=str(error)[:300])
        except RequestRefused as refusal:
            log.warning("workspace_refused", attempt=attempt.path.name, detail=str(refusal)[:300])
            if refusal.is_final:  # another program writes by now, or the job is gone
                if not state.shared_folder:
                    self._say(files, pace, f"The workspace was not kept: {refusal.detail}")
                self._end(files, state)
            pace.failures += 1
            pace.next_at = time.monotonic() + LONGEST_PAUSE_S
        except OSError as error:
            log.warning("disk_error", attempt=attempt.path.name, error=str(error))
            if is_over and state.shared_folder:  # it stays where it is: nothing waits for a look
                self._end(files, state)
            pace.failures += 1
            pace.next_at = time.monotonic() + LONGEST_PAUSE_S
        return True

    @staticmethod
    def _is_stopping(attempt: Attempt) -> bool:
        schedule = attempt.schedule()
        return schedule is not None and boot_s() >= schedule.stop_at

    def _take(
        self, files: WorkspaceFiles, state: WorkspaceState, pace: Pace, *, final: bool
    ) -> None:
        if state.shared_folder:
            self._tell_use(files, state, pace)
            if final:
                self._end(files, state)
            return
        found = look_apart(
            Looking(
                root=files.folder,
                look_file=files.look_file,
                aside=files.aside,
                tree_file=files.tree,
                next_look=files.next_look,
                max_bytes=state.max_bytes,
                max_files=state.max_files,
            )
        )
        if found.tree is not None and not (found.has_changed or final or pace.told):
            os.replace(files.next_look, files.look_file)
            return
        if found.tree is not None:
            self._bring(files, found, found.tree)
        answer = self._report(files, found, final=final)
        if answer.kept:
            os.replace(files.next_look, files.look_file)
            log.info(
                "workspace_kept",
                attempt=files.attempt.path.name,
                files=found.files,
                sent=len(found.new),
            )
        self._say(files, pace, answer.message)
        if found.num_left_out and final:
            more = found.num_left_out - len(found.left_out)
            self._say(
                files,
                pace,
                "These are not kept with the workspace, because of their names or kinds: "
                f"{', '.join(found.left_out)}{f' and {more:,} more' if more else ''}",
            )
        if final:
            self._end(files, state)

    def _tell_use(self, files: WorkspaceFiles, state: WorkspaceState, pace: Pace) -> None:
        """Tell what the person's folder in the site's shared one holds."""
        key = files.attempt.key
        folder = Path(state.shared_folder)
        use = sum_up_apart(Summing(root=folder, max_entries=state.max_files))
        write_atomically(files.use_file, json_bytes(use))  # its launcher looks at it
        look = SharedLook(job_id=key.job_id, epoch=key.epoch, use=use)
        self._say(files, pace, self.client.report_shared_look(look).message)

    def _bring(self, files: WorkspaceFiles, found: Found, tree: Blob) -> None:
        """Bring what the store lacks, the tree last."""
        new = {**found.new, tree.sha256: files.tree}
        for missing in self._missing(files.attempt, list(new)):
            self.client.put_file(new[missing], missing)

    def _missing(self, attempt: Attempt, hashes: list[str]) -> list[str]:
        key, missing = attempt.key, list[str]()
        for start in range(0, len(hashes), ASKED_AT_ONCE):
            query = MissingQuery(
                job_id=key.job_id, epoch=key.epoch, files=hashes[start : start + ASKED_AT_ONCE]
            )
            missing += self.client.ask_missing(query).files
        return missing

    def _report(self, files: WorkspaceFiles, found: Found, *, final: bool) -> SnapshotAck:
        key, tree = files.attempt.key, found.tree
        return self.client.report_snapshot(
            SnapshotReport(
                job_id=key.job_id,
                epoch=key.epoch,
                size=found.size,
                files=found.files,
                tree=None if tree is None else StoredBlob(sha256=tree.sha256, size=tree.size),
                left_out=found.num_left_out,
                final=final,
            )
        )

    def _end(self, files: WorkspaceFiles, state: WorkspaceState) -> None:
        files.write_state(state.model_copy(update={"is_kept": True}))
        self.kept()

    @staticmethod
    def _say(files: WorkspaceFiles, pace: Pace, sentence: str) -> None:
        """Write a sentence to the launcher's log, which the job's owner can read; once."""
        if sentence == pace.told:
            return
        pace.told = sentence
        if sentence:
            with (files.attempt.launcher_logs / "stderr.log").open("a") as log_file:
                log_file.write(f"{time.strftime('%H:%M:%S')} {sentence}\n")
