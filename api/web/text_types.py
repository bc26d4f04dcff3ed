"""Types of the small texts and numbers that travel in paths and queries."""

from typing import Annotated

from fastapi import Query
from pydantic import AfterValidator, Field


def _printable(text: str) -> str:
    if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text):
        raise ValueError("it must not contain control characters")
    if not text.isascii():
        text.encode("utf-8")  # half of a Unicode pair is a ValueError, and so a 422
    return text


PlainText = Annotated[str, Field(max_length=200), AfterValidator(_printable)]
Limit = Annotated[int, Query(ge=1, le=200, description="Number of items on one page.")]
After = Annotated[PlainText | None, Query(description="Id of the last item of the previous page.")]
