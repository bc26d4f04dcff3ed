"""Text that machines send, made storable: PostgreSQL knows no NUL, UTF-8 no half of a pair."""

from typing import Any


def clean_text(text: str) -> str:
    """`text` without NUL characters and without halves of Unicode pairs."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def cleaned(document: Any) -> Any:
    """A JSON document with every text in it made storable."""
    if isinstance(document, str):
        return clean_text(document)
    if isinstance(document, list):
        return [cleaned(item) for item in document]
    if isinstance(document, dict):
        return {clean_text(key): cleaned(value) for key, value in document.items()}
    return document
