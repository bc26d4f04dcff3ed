"""What the API takes and gives about code and secrets of scripts."""

from pydantic import Field

from api.schema_base import Body, Moment, View


class CodeView(View):
    """An archive of code that you have uploaded."""

    sha256: str
    """What a job's `script.code` names."""
    size: int
    unpacked_size: int
    paths: list[str]
    """Of its files."""
    created_at: Moment


class CodeLine(View):
    """An archive of code in a list."""

    sha256: str
    size: int
    files: int
    jobs: list[str]
    """Ids of the jobs that have not ended and need it."""
    created_at: Moment


class SecretValue(Body):
    """A secret's value, which nobody reads back."""

    value: str = Field(min_length=1, max_length=32_768, repr=False)


class SecretView(View):
    """A secret: that it is there, not what it is."""

    name: str
    created_at: Moment
    updated_at: Moment
