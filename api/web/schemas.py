"""Base classes and types of all requests and answers of the public API: the contract of client,
dashboard and scripts.

Times are RFC 3339 with an offset. Lists are `{"object": "list", "data": [...], "has_more": bool}`;
the next page starts `after` the last id of this one.
"""

import re
from datetime import datetime
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

Item = TypeVar("Item")
NUMBER = re.compile(r"\s*[-+]?[0-9.]+(e[-+]?[0-9]+)?\s*", re.IGNORECASE)


def _written_out(value: object) -> object:
    """Refuse a bare number, which pydantic takes for seconds since 1970."""
    if isinstance(value, int | float) or (isinstance(value, str) and NUMBER.fullmatch(value)):
        raise ValueError("write the time as RFC 3339, such as 2026-12-01T14:00:00+01:00")
    return value


# A moment with its offset; naive times and bare numbers are refused.
AskedMoment = Annotated[AwareDatetime, BeforeValidator(_written_out)]
Moment = Annotated[
    AskedMoment,
    PlainSerializer(datetime.isoformat, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


class Body(BaseModel):
    """Base of requests; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class View(BaseModel):
    """Base of answers."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


class Page(View, Generic[Item]):
    """One page of a list."""

    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool = False


class EventView(View):
    """One event in the history of a job, node or lease."""

    id: int
    at: Moment
    epoch: int | None
    kind: str
    from_state: str | None
    to_state: str | None
    reason_code: str
    """Reason for machines; empty for none. docs/states.md lists the codes; more may be added."""
    message: str
    actor: str


class Health(View):
    """Health of the API, for machines."""

    status: Literal["ok"]
    version: str
    """Version of the platform."""


class ProblemItem(View):
    """One error in a request."""

    param: str
    code: str
    message: str


class ProblemDocument(View):
    """RFC 9457 problem document."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    param: str | None = None
    errors: list[ProblemItem] = Field(default_factory=list)
    choices: list[str] = Field(default_factory=list)
    """Moments that could be asked for instead."""
