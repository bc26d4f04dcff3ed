"""Answers with curves and lines of output, as they are stored."""

from datetime import datetime

from pydantic import Field

from api.web.schemas import View


class Series(View):
    """One metric of one rank, down-sampled to at most `resolution` points; extremes are kept.

    `steps` and `values` have the same length. `min` and `max` are the band around each point when
    several were merged into it, else empty.
    """

    key: str
    rank: int
    steps: list[int]
    values: list[float | None]
    min: list[float | None] = Field(default_factory=list)
    max: list[float | None] = Field(default_factory=list)
    points: int
    """Number of recorded points."""


class LogLine(View):
    """One line of one rank's output."""

    epoch: int
    rank: int
    """Rank that wrote the line; -1 is the launcher, -2 the launcher of the second node, and so
    on."""
    stream: str
    line: int
    text: str
    at: datetime | None = None
    """Arrival of the line's part of the output at the platform, about a second after it was
    written."""
