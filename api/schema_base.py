"""What all shapes of the public API have in common."""

from datetime import datetime
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, PlainSerializer

Item = TypeVar("Item")
# A moment with its offset; naive times are refused.
Moment = Annotated[AwareDatetime, PlainSerializer(datetime.isoformat, return_type=str)]


class Body(BaseModel):
    """Base of requests: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class View(BaseModel):
    """Base of answers."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


class Page(View, Generic[Item]):
    """One page of a list."""

    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool = False
