"""Hashes of passwords, at the cost that guessers meet; elsewhere in these tests they are cheap."""

import pytest
from pwdlib.hashers.argon2 import Argon2Hasher

from api.web import passwords


def test_a_hash_is_as_dear_as_rfc_9106_asks_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "Argon2Hasher", Argon2Hasher)
    passwords._hasher.cache_clear()
    kept = passwords.hash_password("a sentence of my own")
    passwords._hasher.cache_clear()
    assert kept.startswith("$argon2id$v=19$m=65536,t=3,p=4$")  # RFC 9106, 4: its second choice
    assert passwords.verify_password("a sentence of my own", kept)
    assert not passwords.verify_password("a sentence of yours", kept)
    assert not passwords.verify_password("a sentence of my own", None)
