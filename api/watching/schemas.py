"""Answers about a job's curves and logs, and data of its stream."""

from api.records.schemas import LogLine, Series
from api.web.schemas import View


class MetricsView(View):
    """Series of a job, over all its attempts; a step that was run twice has its last value."""

    job: str
    keys: list[str]
    """All keys that exist, including those that were not requested."""
    series: list[Series]


class LogsView(View):
    """Lines, oldest first. `cursor` is the position from which the next call continues."""

    lines: list[LogLine]
    cursor: str
    has_more: bool
    ranks: list[int]


class LiveMetrics(View):
    """Data of a stream's `metrics` event: new lines of `metrics.jsonl`, each stored once."""

    epoch: int
    rank: int
    lines: list[dict[str, float | int | None]]
    """New lines. Each has `step`, `line` (its number) and the numeric keys of that line."""


class LiveLog(View):
    """Data of a stream's `log` event."""

    lines: list[LogLine]
