"""Text from machines, made storable: PostgreSQL allows no NUL, UTF-8 no lone surrogate."""

from typing import Any


def clean_text(text: str) -> str:
    """Return `text` without NUL characters and without lone surrogates."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def cleaned(document: Any) -> Any:
    """Return a JSON document with every text in it made storable."""
    if isinstance(document, str):
        return clean_text(document)
    if isinstance(document, list):
        return [cleaned(item) for item in document]
    if isinstance(document, dict):
        return {clean_text(key): cleaned(value) for key, value in document.items()}
    return document
