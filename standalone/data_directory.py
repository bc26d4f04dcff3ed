"""The one folder in which a standalone platform keeps everything, and the lock on it."""

import fcntl
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from standalone import valkey


class AlreadyRunning(Exception):
    """Another `trainyard up` holds this data directory."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(
            f"A platform is already running on {path} ({holder or 'starting'}). Use it, stop "
            "it, or choose another folder with --data."
        )
        self.holder = holder


@dataclass(frozen=True)
class DataDirectory:
    """Paths below one folder, whose files only their owner can read."""

    path: Path

    @classmethod
    def default(cls) -> "DataDirectory":
        """`trainyard` below the user's state folder."""
        state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        return cls(Path(state).expanduser() / "trainyard")

    @property
    def option(self) -> str:
        """Option of a command that names this folder; empty for the default folder."""
        return "" if self == self.default() else f" --data {shlex.quote(str(self.path))}"

    @property
    def database(self) -> Path:
        """The SQLite database."""
        return self.path / "trainyard.db"

    @property
    def database_url(self) -> str:
        """SQLAlchemy address of the SQLite database."""
        return f"sqlite:///{self.database}"

    @property
    def store(self) -> Path:
        """Datasets, checkpoints and artifacts."""
        return self.path / "store"

    @property
    def logs(self) -> Path:
        """One file a process."""
        return self.path / "logs"

    @property
    def node(self) -> Path:
        """Folder of this machine's worker: identity, run directories, spool."""
        return self.path / "node"

    @property
    def first_start(self) -> Path:
        """The link that makes the first administrator; gone once it was used."""
        return self.path / "first-start-link"

    @property
    def address(self) -> Path:
        """File with the address of the running platform's API."""
        return self.path / "address"

    def create(self) -> None:
        """Make missing folders and the database file, and restrict them to their owner.

        The data folder itself may be the user's own choice and hold other things: its mode stays as
        it is.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.store, self.logs, self.node, self.path / valkey.LOG_FOLDER):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700)
        self.database.touch()
        for file in self.path.glob(f"{self.database.name}*"):  # SQLite's others are like the first
            file.chmod(0o600)

    def lock(self) -> int:
        """Hold the folder for as long as this process lives; raises AlreadyRunning.

        The returned descriptor must stay open. It is not inherited by children.
        """
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise AlreadyRunning(self.path, self.running_address()) from None
        return descriptor

    def running_address(self) -> str:
        """Return the address that the running platform wrote down, or an empty string."""
        return self.address.read_text().strip() if self.address.exists() else ""
