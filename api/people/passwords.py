"""Passwords: Argon2id. A hash takes about 0.1 s, so handlers that call this are `def`."""

from functools import cache

from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher

from core.errors import BadRequest

# Of the lists of leaked passwords, those that pass the length rule most often.
WELL_KNOWN = frozenset(
    {"password1234", "123456789012", "1234567890123", "qwertyuiop12", "passwordpassword"}
)


def hash_password(password: str) -> str:
    """What is kept of a password. BadRequest for one that everybody guesses."""
    if password.lower() in WELL_KNOWN or len(set(password)) < 4:
        raise BadRequest(
            "password: this one is too easy to guess. Take a sentence of your own.",
            code="weak_password",
            param="password",
        )
    return _hasher().hash(password)


def verify_password(password: str, password_hash: str | None) -> bool:
    """Whether it is right. As slow for a person who has none, so that time tells nothing."""
    if password_hash is None:
        _hasher().verify(password, _nobodys_hash())
        return False
    return _hasher().verify(password, password_hash)


@cache
def _hasher() -> PasswordHash:
    return PasswordHash((Argon2Hasher(),))


@cache
def _nobodys_hash() -> str:
    return _hasher().hash("nobody has this password")
