"""Secrets that people and nodes carry: made once, shown once, kept as SHA-256."""

import secrets
from hashlib import sha256


def new_secret() -> str:
    """Return 256 random bits as text, with a prefix that secret scanners can look for."""
    return f"ty_{secrets.token_urlsafe(32)}"


def digest(secret: str) -> str:
    """Return the SHA-256 of a secret, which is all that is kept of it."""
    return sha256(secret.encode("utf-8", "replace")).hexdigest()
