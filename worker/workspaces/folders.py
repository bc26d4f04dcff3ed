"""Files of an attempt about its owner's workspace.

workspace/             the folder itself, /job/workspace inside
workspace.json         what the program may do with it, and how far the store is
workspace-look.json    the last look: the tree, and what its files looked like
workspace-aside/       contents on their way to the store
workspace-use.json     what a person's folder in the site's shared one held at the last look
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from core.wire.shared_use import SharedUse
from core.workspaces.quota import Quota
from strategies.plan.durable_files import json_bytes, write_atomically
from worker.node.attempts import Attempt, StateFile, read_model

INSIDE = "/job/workspace"
VARIABLE = "TRAINYARD_WORKSPACE"


class WorkspaceMount(StateFile):
    """A workspace in a program's sandbox."""

    folder: str
    """Path on this node."""
    writable: bool
    uid: int | None = None
    """User that owns the folder and runs the program: its owner's, in a site's shared folder."""


class WorkspaceState(StateFile):
    """Content of workspace.json."""

    access: Literal["write", "read", "shared"]
    shared_folder: str = ""
    """The person's folder in the site's shared one; empty: the workspace is the attempt's own."""
    max_bytes: int
    """Beyond it a program in a shared folder is ended, and nothing else is kept."""
    max_files: int
    is_kept: bool = False
    """True if nothing of it is to be brought to the store any more."""


@dataclass(frozen=True)
class WorkspaceFiles:
    """Paths of an attempt's workspace."""

    attempt: Attempt

    @property
    def folder(self) -> Path:
        return self.attempt.path / "workspace"

    @property
    def state_file(self) -> Path:
        return self.attempt.path / "workspace.json"

    @property
    def look_file(self) -> Path:
        return self.attempt.path / "workspace-look.json"

    @property
    def next_look(self) -> Path:
        return self.attempt.path / "workspace-look.next.json"

    @property
    def aside(self) -> Path:
        return self.attempt.path / "workspace-aside"

    @property
    def tree(self) -> Path:
        """File of the tree that is brought."""
        return self.attempt.path / "workspace-tree.json"

    @property
    def use_file(self) -> Path:
        return self.attempt.path / "workspace-use.json"

    def why_ended(self) -> str:
        """Return the reason why the attempt's program must be ended: the person's shared folder
        held too much at the last look. Empty if it may go on."""
        state, use = self.state(), read_model(self.use_file, SharedUse)
        if state is None or use is None or not state.shared_folder:
            return ""
        return Quota(state.max_bytes, state.max_files).why_ended(use.size, use.files)

    def state(self) -> WorkspaceState | None:
        return read_model(self.state_file, WorkspaceState)

    def write_state(self, state: WorkspaceState) -> None:
        write_atomically(self.state_file, json_bytes(state))

    @property
    def is_kept(self) -> bool:
        """True if it may be wiped: the store has all that is to be kept of it."""
        if not self.state_file.exists():
            return True
        state = self.state()
        return state is not None and state.is_kept
