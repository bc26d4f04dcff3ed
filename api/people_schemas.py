"""What the public API takes and gives about people: accounts, sessions, tokens, labs."""

from typing import Annotated

from pydantic import Field

from api.schema_base import Body, Moment, View
from core.spec import NAME
from core.tables import Role

UserName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]{0,31}$")]
Password = Annotated[str, Field(min_length=12, max_length=200)]


class UserView(View):
    """A person."""

    id: str
    name: str
    role: Role
    zone: str
    disabled: bool
    created_at: Moment


class NewUser(Body):
    """A person to add; without a password they sign in by a login link."""

    name: UserName
    role: Role = Role.USER
    password: Password | None = None
    zone: str = Field(default="UTC", max_length=64)


class UserChange(Body):
    """What an administrator may change of a person."""

    role: Role | None = None
    disabled: bool | None = None
    password: Password | None = None


class FirstStart(Body):
    """The secret of the first-start link, and the first administrator."""

    secret: str = Field(min_length=20, max_length=200)
    name: UserName
    password: Password | None = None


class SignIn(Body):
    """Name and password."""

    name: str = Field(max_length=32)
    password: str = Field(max_length=200)


class LinkSignIn(Body):
    """The secret of a login link."""

    secret: str = Field(min_length=20, max_length=200)


class NewToken(Body):
    """An API token to make for oneself."""

    name: str = Field(pattern=NAME)
    expires_in_days: int = Field(default=90, ge=1, le=366)


class TokenView(View):
    """An API token; the secret is only in the answer that made it."""

    id: str
    name: str
    created_at: Moment
    expires_at: Moment | None
    last_used_at: Moment | None
    revoked_at: Moment | None


class TokenMade(TokenView):
    """A fresh token, with its secret: it is shown this once."""

    secret: str
    user: UserView


class LinkView(View):
    """A link that works once."""

    url: str
    secret: str
    expires_at: Moment


class LabView(View):
    """A group of people."""

    id: str
    name: str
    members: list[str]
    """Names."""
    created_at: Moment


class NewLab(Body):
    """A group to make."""

    name: str = Field(pattern=NAME)


class NewMember(Body):
    """A person to add to a lab."""

    user: UserName
    is_lead: bool = False


class MyChange(Body):
    """What one may change of oneself."""

    zone: str | None = Field(default=None, max_length=64)
    password: Password | None = None
    current_password: str | None = Field(default=None, max_length=200)
