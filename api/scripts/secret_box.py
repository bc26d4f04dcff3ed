"""Encryption of users' secrets, with Fernet keys in a file outside the database.

The file holds one key a line. The first one seals, every one opens: a new key is put on top, then
`python -m api.scripts.reseal_secrets` seals all secrets anew, then the old one may be removed.

Cryptography is imported when it is used: it takes 8 MiB, and many platforms keep no secret.
"""

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from core.base.errors import Unavailable

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet


class SecretBox:
    """Box that seals and opens secrets with the keys in `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def seal(self, value: str) -> bytes:
        """Return `value` encrypted with the first key. Raises Unavailable without a usable key."""
        return self._fernet().encrypt(value.encode())

    def open(self, sealed: bytes) -> str:
        """Return the sealed value. Raises Unavailable if no key of the file opens it."""
        from cryptography.fernet import InvalidToken

        try:
            return self._fernet().decrypt(sealed).decode()
        except InvalidToken as error:
            raise Unavailable(
                f"A secret cannot be decrypted with any key in {self.path}. An administrator "
                "must restore the key that sealed it, or its owner must set the secret again.",
                code="secret_key_missing",
            ) from error

    def make_first_key(self) -> None:
        """Make the file with a first key if it is missing.

        The caller must know that nothing is sealed yet: a new key opens nothing that an earlier
        one has sealed.
        """
        from cryptography.fernet import Fernet

        if self.path.exists():
            return
        aside = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}")
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(Fernet.generate_key() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(aside, self.path)  # whole, and never over a key that another API has made
        except FileExistsError:
            return
        finally:
            aside.unlink()

    def _fernet(self) -> "MultiFernet":
        from cryptography.fernet import Fernet, MultiFernet

        try:
            keys = self.path.read_text("ascii").split()
            return MultiFernet([Fernet(key) for key in keys])
        except (OSError, ValueError) as error:
            raise Unavailable(
                f"The keys in {self.path} cannot be read: {error}. Tell an administrator.",
                code="secret_key_missing",
            ) from error
