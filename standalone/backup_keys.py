"""The keys that users' secrets are sealed with, in a backup; without them secrets are lost."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from api.scripts.secret_box import SecretBox
from core.base.errors import Unavailable
from strategies.plan.durable_files import sha256_of
from strategies.plan.words import counted

KEYS = "secrets.key"

Say = Callable[[str], None]


class WrongKeys(ValueError):
    """Keys are missing, damaged or different; the message states the remedy."""


def back_up_keys(keys: Path, folder: Path, *, sealed: list[bytes], say: Say) -> str | None:
    """Copy the keys into a backup's folder; their SHA-256, or None where there never were any.

    WrongKeys where secrets are sealed and their keys are missing.
    """
    saved = folder / KEYS
    saved.unlink(missing_ok=True)
    if not keys.is_file():
        if not sealed:
            return None
        raise WrongKeys(
            f"The database has {counted(len(sealed), 'secret')} of users, and {keys}, which "
            "decrypts them, is missing. Is TRAINYARD_SECRETS_KEY right?"
        )
    _copy_private(keys, saved)
    lost = unopened(saved, sealed)
    if lost:
        say(
            f"{lost:,} of {len(sealed):,} secrets of users cannot be decrypted with any key "
            f"in {keys}."
        )
    say(f"The backup contains {KEYS}: anybody who can read the folder can decrypt users' secrets.")
    return sha256_of(saved)


def verify_keys(keys: Path, folder: Path, sha256: str) -> None:
    """WrongKeys where the backup's are damaged, or where `keys` lacks one of them."""
    saved = folder / KEYS
    if not saved.is_file() or sha256_of(saved) != sha256:
        raise WrongKeys(f"{KEYS} of the backup is damaged or missing. Use another backup.")
    if keys.exists() and not set(saved.read_text().split()) <= set(keys.read_text().split()):
        raise WrongKeys(
            f"The keys in {keys} differ from those of the backup. Move the file away, or "
            f"append the lines of {saved} to it."
        )


def restore_keys(keys: Path, folder: Path) -> None:
    """Put the backup's keys where the API looks for them, unless they are there."""
    if not keys.exists():
        keys.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _copy_private(folder / KEYS, keys)


def unopened(keys: Path, sealed: Iterable[bytes]) -> int:
    """Count the secrets that no key opens."""
    box = SecretBox(keys)
    lost = 0
    for one in sealed:
        try:
            box.open(one)
        except Unavailable:
            lost += 1
    return lost


def _copy_private(source: Path, target: Path) -> None:
    """At no moment may anybody else read it."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(source.read_bytes())
        file.flush()
        os.fsync(file.fileno())
