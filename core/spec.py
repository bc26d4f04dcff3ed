"""What a user submits: what to train (`strategies.spec`), and where and for how long. Pure."""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from strategies.spec import TrainSpec

# Starts with a letter or digit; no markup, no control characters, nothing a shell would read.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,62}$"
UNIT_S = {"s": 1, "min": 60, "h": 3600}
MAX_WALL_TIME_S = 14 * 24 * 3600


class Launcher(StrEnum):
    """What starts the ranks. Both keep one contract: environment, logs, run directory, exit."""

    AUTO = "auto"
    TORCHRUN = "torchrun"
    WARM = "warm"


def parse_duration_s(value: object) -> object:
    """Seconds from `90`, `"90s"`, `"20min"`, `"1.5h"` or `"2h 30min"`; else `value` unchanged."""
    if isinstance(value, timedelta):
        return int(value.total_seconds())
    if not isinstance(value, str):
        return value
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(s|min|h)", value)
    if not parts or re.sub(r"(\d+(?:\.\d+)?)\s*(s|min|h)", "", value).strip():
        raise ValueError(f"{value!r} is no duration; write it like 90s, 20min or 1h 30min")
    return int(sum(float(number) * UNIT_S[unit] for number, unit in parts))


def format_duration(seconds: int) -> str:
    """`5400` -> `1h 30min`: the inverse of `parse_duration_s`."""
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [f"{hours}h" if hours else "", f"{minutes}min" if minutes else ""]
    return " ".join([p for p in parts if p] + ([f"{rest}s"] if rest else [])) or "0s"


Duration = Annotated[
    int,
    BeforeValidator(parse_duration_s),
    PlainSerializer(format_duration, return_type=str),
    Field(strict=True, json_schema_extra={"type": "string", "examples": ["20min", "1h 30min"]}),
]


class Resources(BaseModel):
    """Where and for how long."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: int = Field(default=1, ge=1, le=1024)
    ranks_per_node: int = Field(default=1, ge=1, le=64)
    threads_per_rank: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads that a rank computes with. None: its share of the node's cores."""
    node_class: str | None = Field(default=None, max_length=63)
    """None takes the first class on which the plan fits."""
    wall_time: Annotated[Duration, Field(ge=60, le=MAX_WALL_TIME_S)]
    """Mandatory. The job is stopped with a checkpoint after it, and fails with `time_limit`."""


class JobSpec(TrainSpec):
    """A job: a training, its resources, and the lease to run in, if one was booked."""

    name: str = Field(pattern=NAME)
    resources: Resources
    lease: str | None = Field(default=None, pattern=r"^lease_[0-9a-z]{26}$")
    launcher: Launcher = Launcher.AUTO
