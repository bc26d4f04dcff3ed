"""Requests and answers about sharing."""

from typing import Self

from pydantic import Field, model_validator

from api.web.schemas import Body, Moment, View
from api.web.text_types import PlainText
from core.tables.kinds import AudienceKind, SharedKind


class NewShare(Body):
    """A thing of yours, and those who may read it: one of `person`, `group` and `everybody`."""

    kind: SharedKind
    thing: PlainText
    """Id or name of the thing; of a report its hash."""
    person: PlainText | None = None
    """Name of a person."""
    group: PlainText | None = None
    """Name of a lab, or a further name of labs such as a course's; you must be in it."""
    everybody: bool = Field(default=False)
    """True: everybody who has an account here."""

    @model_validator(mode="after")
    def _has_one_audience(self) -> Self:
        if sum((self.person is not None, self.group is not None, self.everybody)) != 1:
            raise ValueError("name one of person, group and everybody")
        return self


class ShareView(View):
    """Permission to read one of your things. The bytes exist once, whoever reads them."""

    id: str
    kind: SharedKind
    thing: str
    """Id of the thing; of a report its hash."""
    name: str
    """Name of the thing; of a report its title."""
    audience: AudienceKind
    who: str
    """Name of the person or group; empty for everybody."""
    created_at: Moment
