"""Views of workspaces."""

from api.web.schemas import Moment, View
from core.tables.kinds import SnapshotOrigin
from core.wire.workspace_tree import EntryKind


class WorkspaceWriterView(View):
    """The program that writes to your workspace now."""

    job: str
    name: str
    """Name of the job."""
    epoch: int
    since: Moment


class SharedEntryView(View):
    """Entry at the top of your folder in the site's shared one, with all that is below it."""

    path: str
    kind: EntryKind
    size: int
    files: int
    """Number of files, folders and links below it."""


class SharedUseView(View):
    """Use of your folder in the site's shared one, as a node saw it."""

    used: int
    """Bytes of its files."""
    files: int
    """Number of its files, folders and links."""
    is_whole: bool
    """False: the look was ended; there is at least so much."""
    top: list[SharedEntryView]
    """Entries at its top, the largest first; at most 200."""
    seen_at: Moment


class WorkspaceView(View):
    """State of your workspace, the folder that outlives leases and follows you between nodes."""

    used: int
    """Bytes of its files."""
    max_bytes: int
    files: int
    """Number of its files, folders and links."""
    max_files: int
    snapshot: str | None
    """Id of the snapshot that the next program begins with. Null: it is empty."""
    taken_at: Moment | None
    writer: WorkspaceWriterView | None
    """Null: nobody writes to it, and the next program may."""
    trouble: str
    """Reason why the last look at it was not kept, or that a limit is near. Empty: neither."""
    shared_classes: list[str]
    """Node classes whose nodes keep workspaces in a folder of the site."""
    shared: SharedUseView | None
    """Use of your folder there, as a program of yours left it last. Null: none has used it."""


class WorkspaceEntryView(View):
    """A file, folder or link of your workspace."""

    path: str
    kind: EntryKind
    size: int
    modified_at: Moment | None
    executable: bool
    sha256: str | None
    """SHA-256 of a file's content."""
    target: str | None
    """Text of a link."""


class WorkspaceSnapshotView(View):
    """Snapshot of your workspace: all of its files at one moment."""

    id: str
    origin: SnapshotOrigin
    job: str | None
    """Job of the program that it was taken of."""
    epoch: int | None
    used: int
    files: int
    left_out: int
    """Number of files that could not be kept, such as sockets."""
    taken_at: Moment
    is_current: bool
    """True for the one that the next program begins with."""
