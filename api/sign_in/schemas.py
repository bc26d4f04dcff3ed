"""Requests and answers about signing in: passwords, links, tokens, invitations."""

from typing import Literal

from pydantic import Field

from api.people.schemas import Attributes, Email, Password, UserName, UserView
from api.web.schemas import Body, Moment, View
from api.web.text_types import PlainText
from core.spec.spec import NAME
from core.tables.kinds import Scope


class NewPassword(Body):
    """A new password, with the secret of the link that allows it."""

    secret: str = Field(min_length=20, max_length=200)
    password: Password


class NewInvite(Body):
    """An invitation to make."""

    lab: PlainText | None = None
    """Name or id of the lab that the invited person joins."""
    email: Email | None = None
    attributes: Attributes = Field(default_factory=dict)
    days: int = Field(default=7, ge=1, le=60)
    """Days for which the invitation is valid."""


class InviteView(View):
    """An invitation. Its secret is only in the answer to the request that made it."""

    id: str
    lab: str | None
    email: str | None
    attributes: dict[str, str]
    invited_by: str
    state: Literal["open", "used", "expired", "revoked"]
    used_by: str | None
    created_at: Moment
    expires_at: Moment


class InviteMade(InviteView):
    """A new invitation with its link, which is shown only in this answer."""

    url: str
    secret: str


class InviteAnswer(Body):
    """The secret of an invitation, and the account to make by it."""

    secret: str = Field(min_length=20, max_length=200)
    name: UserName
    password: Password
    zone: str = Field(default="UTC", max_length=64)


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
    """An API token to make for yourself."""

    name: str = Field(pattern=NAME)
    scopes: list[Scope] = Field(default=[Scope.READ], min_length=1, max_length=len(Scope))
    """Permitted uses of the token. Each scope includes `read`; `all` includes every other."""
    expires_in_days: int = Field(default=90, ge=1, le=366)


class TokenView(View):
    """An API token. Its secret is only in the answer to the request that made it."""

    id: str
    name: str
    scopes: list[Scope]
    created_at: Moment
    expires_at: Moment | None
    last_used_at: Moment | None
    revoked_at: Moment | None


class SessionView(View):
    """A session: one browser or program in which a person is signed in."""

    id: str
    name: str
    """Device that signed in, and its address: `Firefox on Linux, 10.0.0.7`."""
    is_this_one: bool
    """True for the session that sends this request."""
    created_at: Moment
    expires_at: Moment | None
    """End of the session if it is not used until then."""
    last_used_at: Moment | None
    """Time of the last use, exact to ten minutes."""


class TokenMade(TokenView):
    """A new token with its secret, which is shown only in this answer."""

    secret: str
    user: UserView
