"""Passwords: Argon2id. A hash takes about 0.1 s of several threads, so handlers that call this are
`def`, and no more hashes are made at once than there are cores: other requests are served however
many people sign in.
"""

import os
import threading
from functools import cache

from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher

from core.base.errors import BadRequest

# Of the lists of leaked passwords, those that pass the length rule most often.
WELL_KNOWN = frozenset(
    {"password1234", "123456789012", "1234567890123", "qwertyuiop12", "passwordpassword"}
)
AT_ONCE = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))


def hash_password(password: str) -> str:
    """Return the hash that is kept of a password. Raises BadRequest for an easily guessed one."""
    if password.lower() in WELL_KNOWN or len(set(password)) < 4:
        raise BadRequest(
            "password: it is too easy to guess. Use a sentence of your own.",
            code="weak_password",
            param="password",
        )
    with AT_ONCE:
        return _hasher().hash(password)


def verify_password(password: str, password_hash: str | None) -> bool:
    """Return True if the password is right.

    Without a hash (no such person, or no password) this takes as long: timing reveals nothing.
    """
    with AT_ONCE:
        is_right = _hasher().verify(password, password_hash or _nobodys_hash())
    return is_right and password_hash is not None


@cache
def _hasher() -> PasswordHash:
    return PasswordHash((Argon2Hasher(),))


@cache
def _nobodys_hash() -> str:
    return _hasher().hash("nobody has this password")
