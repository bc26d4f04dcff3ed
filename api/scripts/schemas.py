"""Requests and answers of the API about code and secrets of scripts."""

from pydantic import Field

from api.web.schemas import Body, Moment, View


class CodeView(View):
    """An archive of code that you have uploaded."""

    sha256: str
    """SHA-256 of the archive, by which a job's `script.code` names it."""
    size: int
    unpacked_size: int
    paths: list[str]
    """Paths of the files in the archive."""
    created_at: Moment


class CodeLine(View):
    """An archive of code in a list."""

    sha256: str
    size: int
    files: int
    jobs: list[str]
    """Ids of the jobs that need the archive and have not ended."""
    created_at: Moment


class SecretValue(Body):
    """Value of a secret. No person can read it back."""

    value: str = Field(min_length=1, max_length=32_768, repr=False)


class SecretView(View):
    """A secret without its value."""

    name: str
    created_at: Moment
    updated_at: Moment
