"""Users that scripts run as if the worker is root: without an account, and never shared.

A user is taken by a lock on a file in a folder of the whole machine, so that two platforms never
share one. The kernel releases it when the last process that holds it has ended.
"""

import fcntl
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FIRST_UID, NUM_UIDS = 60_578, 606  # not used by accounts (systemd.io/UIDS-GIDS: unused)
TAKEN = Path("/run/trainyard-sandbox-users")


@dataclass(frozen=True)
class SandboxUser:
    """One of these users, while this process holds it exclusively."""

    uid: int
    lock: int
    """Descriptor that holds it."""

    def release(self) -> None:
        """Let another script use it."""
        os.close(self.lock)


def take_user() -> SandboxUser:
    """Take a user that no script of this machine runs as. Raises OSError if there is none."""
    TAKEN.mkdir(mode=0o700, exist_ok=True)
    uids = range(FIRST_UID, FIRST_UID + NUM_UIDS)
    for uid in random.sample(uids, k=NUM_UIDS):
        user = try_to_take(uid)
        if user is not None:
            return user
    raise OSError(f"all {NUM_UIDS} users for sandboxes are in use on this machine")


def try_to_take(uid: int) -> SandboxUser | None:
    """Take this user; return None if a script runs as it."""
    lock = os.open(TAKEN / str(uid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return SandboxUser(uid, lock)


def share_user(uid: int) -> SandboxUser:
    """Return a person's own user, which all programs of that person run as."""
    TAKEN.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(TAKEN / str(uid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return SandboxUser(uid, lock)


@contextmanager
def user_for_a_while() -> Iterator[int | None]:
    """Yield the uid of a user that is held meanwhile; None if the worker is not root."""
    if os.geteuid() != 0:
        yield None
        return
    user = take_user()
    try:
        yield user.uid
    finally:
        user.release()
