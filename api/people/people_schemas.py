"""What the public API takes and gives about people: accounts, sessions, tokens, labs."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from api.schema_base import Body, Moment, View
from api.text_types import PlainText
from core.spec.spec import NAME
from core.tables.kinds import Role, Scope

UserName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]{0,31}$")]
Password = Annotated[str, Field(min_length=12, max_length=200)]
EMAIL = r"^[^@\s<>\"(),:;\\\[\]]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,188}[A-Za-z0-9])?$"
Email = Annotated[str, Field(max_length=254, pattern=EMAIL), AfterValidator(str.lower)]
Attributes = Annotated[
    dict[Annotated[str, Field(pattern=NAME)], Annotated[PlainText, Field(max_length=100)]],
    Field(max_length=20),
]


class UserView(View):
    """A person."""

    id: str
    name: str
    role: Role
    zone: str
    email: str | None
    attributes: dict[str, str]
    """Texts that booking rules may ask for, such as the cohort."""
    disabled: bool
    created_at: Moment


class NewUser(Body):
    """A person to add; without a password they sign in by a login link."""

    name: UserName
    role: Role = Role.USER
    password: Password | None = None
    zone: str = Field(default="UTC", max_length=64)
    email: Email | None = None
    attributes: Attributes = Field(default_factory=dict)


class UserChange(Body):
    """What an administrator may change of a person. What is not sent stays."""

    role: Role | None = None
    disabled: bool | None = None
    password: Password | None = None
    email: Email | None = None
    """`null` takes it away."""
    attributes: Attributes | None = None
    """All of them: what is not named goes."""


class NewPassword(Body):
    """A new password, with the secret of the link that allows it."""

    secret: str = Field(min_length=20, max_length=200)
    password: Password


class Move(Body):
    """From one lab to another."""

    from_lab: PlainText
    to_lab: PlainText


class MoveView(View):
    """What a move has changed."""

    user: UserView
    from_lab: str
    to_lab: str
    leases: list[str]
    """Ids of the leases to come, which follow; what was used stays with the old lab."""


class ImportRow(View):
    """What one line of a list of people means."""

    line: int
    name: str
    action: Literal["add", "change", "same"]
    changes: list[str]
    """Names of what is new of a person who was there already."""
    password_link: str | None
    """With which a new person sets a password; shown this once."""


class ImportView(View):
    """What a list of people has done, or would do."""

    dry_run: bool
    added: int
    changed: int
    same: int
    labs: list[str]
    """Names of labs that are made for it."""
    rows: list[ImportRow]


class NewInvite(Body):
    """Whom to invite."""

    lab: PlainText | None = None
    """Name or id of the lab that they join."""
    email: Email | None = None
    attributes: Attributes = Field(default_factory=dict)
    days: int = Field(default=7, ge=1, le=60)
    """For which it is valid."""


class InviteView(View):
    """An invitation; its secret is only in the answer that made it."""

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
    """A fresh invitation, with its link: it is shown this once."""

    url: str
    secret: str


class InviteAnswer(Body):
    """The secret of an invitation, and who comes."""

    secret: str = Field(min_length=20, max_length=200)
    name: UserName
    password: Password
    zone: str = Field(default="UTC", max_length=64)


class NewGrant(Body):
    """An exception to make."""

    user: PlainText
    """Name or id."""
    rule: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    """The reason code that it lifts, such as `quota_main`."""
    extra: int = Field(default=1, ge=1, le=10_000)
    """How many more leases or node-hours."""
    starts_at: Moment
    ends_at: Moment
    why: PlainText = Field(min_length=3)


class GrantView(View):
    """An exception, as everybody may see it."""

    id: str
    user: str
    rule: str
    extra: int
    starts_at: Moment
    ends_at: Moment
    granted_by: str
    why: str
    created_at: Moment
    revoked_at: Moment | None


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
    scopes: list[Scope] = Field(default=[Scope.READ], min_length=1, max_length=len(Scope))
    """What it may be used for; each includes `read`, and `all` every other."""
    expires_in_days: int = Field(default=90, ge=1, le=366)


class TokenView(View):
    """An API token; the secret is only in the answer that made it."""

    id: str
    name: str
    scopes: list[Scope]
    created_at: Moment
    expires_at: Moment | None
    last_used_at: Moment | None
    revoked_at: Moment | None


class SessionView(View):
    """Where one is signed in."""

    id: str
    name: str
    """What signed in, and from which address: `Firefox on Linux, 10.0.0.7`."""
    is_this_one: bool
    """Whether it is the one that asks."""
    created_at: Moment
    expires_at: Moment | None
    """If it is not used until then."""
    last_used_at: Moment | None
    """To ten minutes."""


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
    weight: float
    """Its share of the nodes, relative to the other labs'."""
    groups: list[str]
    """Further names under which booking rules find its members."""
    members: list[str]
    """Names."""
    leads: list[str]
    """Those of them who lead it."""
    created_at: Moment


Weight = Annotated[float, Field(gt=0, le=1000)]
Groups = Annotated[list[Annotated[str, Field(pattern=NAME)]], Field(max_length=20)]


class NewLab(Body):
    """A group to make."""

    name: str = Field(pattern=NAME)
    weight: Weight = 1.0
    groups: Groups = Field(default_factory=list)


class LabChange(Body):
    """What an administrator may change of a lab. What is not sent stays."""

    weight: Weight | None = None
    groups: Groups | None = None


class NewMember(Body):
    """A person to add to a lab."""

    user: UserName
    is_lead: bool = False


class MyChange(Body):
    """What one may change of oneself."""

    zone: str | None = Field(default=None, max_length=64)
    password: Password | None = None
    current_password: str | None = Field(default=None, max_length=200)
