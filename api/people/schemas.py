"""Requests and answers about people: accounts, labs, exceptions, lists of people."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from api.leases.schemas import LeaseView
from api.web.schemas import Body, Moment, View
from api.web.text_types import PlainText
from core.spec.spec import NAME
from core.tables.kinds import Role

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
    """Texts that booking rules may ask for, such as the cohort, by attribute name."""
    disabled: bool
    created_at: Moment


class NewUser(Body):
    """A person to add. Without a password the person signs in by a login link."""

    name: UserName
    role: Role = Role.USER
    password: Password | None = None
    zone: str = Field(default="UTC", max_length=64)
    email: Email | None = None
    attributes: Attributes = Field(default_factory=dict)


class UserChange(Body):
    """Changes to a person by an administrator. Fields that are not sent stay as they are."""

    role: Role | None = None
    disabled: bool | None = None
    password: Password | None = None
    email: Email | None = None
    """New mail address; `null` removes the present one."""
    attributes: Attributes | None = None
    """The complete new set: attributes that are not named are removed."""
    reason: PlainText | None = Field(default=None, min_length=3, max_length=300)
    """Reason for the change: in the audit log, and in the cancellation of the person's leases."""


class Move(Body):
    """A move of a person from one lab to another."""

    from_lab: PlainText
    to_lab: PlainText


class MoveView(View):
    """Result of a move from one lab to another."""

    user: UserView
    from_lab: str
    to_lab: str
    leases: list[str]
    """Ids of the booked leases, which move along; past and active ones stay with the old lab."""


class ImportRow(View):
    """Effect of one line of a list of people: the person is added, changed or the same."""

    line: int
    name: str
    action: Literal["add", "change", "same"]
    changes: list[str]
    """Changes to a person who exists already: `email`, `zone`, `lab`, or names of attributes."""
    password_link: str | None
    """Link with which a new person sets a password; shown only in this answer."""


class ImportView(View):
    """Changes made by a list of people; with `dry_run`, the changes that it would make."""

    dry_run: bool
    added: int
    changed: int
    same: int
    labs: list[str]
    """Names of the labs that the list adds."""
    rows: list[ImportRow]


class NewGrant(Body):
    """An exception to make."""

    user: PlainText
    """Name or id of the person."""
    rule: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    """Reason code of the rule that the exception lifts, such as `quota_main`."""
    extra: int = Field(default=1, ge=1, le=10_000)
    """Amount added to the rule's limit, in its unit: for a quota, leases or node-hours."""
    starts_at: Moment
    ends_at: Moment
    why: PlainText = Field(min_length=3)


class GrantView(View):
    """An exception to a booking rule, visible to everybody."""

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
    """Share of the nodes, relative to the weights of the other labs."""
    groups: list[str]
    """Further names under which booking rules find the lab's members."""
    members: list[str]
    """Names of the members."""
    leads: list[str]
    """Names of the members who lead the lab."""
    created_at: Moment


Weight = Annotated[float, Field(gt=0, le=1000)]
Groups = Annotated[list[Annotated[str, Field(pattern=NAME)]], Field(max_length=20)]


class NewLab(Body):
    """A lab to make."""

    name: str = Field(pattern=NAME)
    weight: Weight = 1.0
    groups: Groups = Field(default_factory=list)


class LabChange(Body):
    """Changes to a lab by an administrator. Fields that are not sent stay as they are."""

    weight: Weight | None = None
    groups: Groups | None = None


class NewMember(Body):
    """A person to add to a lab."""

    user: UserName
    is_lead: bool = False


JobColumn = Annotated[str, Field(pattern=r"^[a-z_]{1,30}$")]


class MyChange(Body):
    """Changes to your own account. Fields that are not sent stay as they are."""

    zone: str | None = Field(default=None, max_length=64)
    job_columns: list[JobColumn] | None = Field(default=None, max_length=20)
    """Columns of your lists of jobs, in place of the usual ones."""
    password: Password | None = None
    current_password: str | None = Field(default=None, max_length=200)


class Me(View):
    """The signed-in person, with labs, jobs and lease."""

    user: UserView
    labs: list[str]
    queued: int
    running: int
    lease: LeaseView | None
    """The lease that is active now, or the next booked one."""
    job_columns: list[str] | None = None
    """Columns that your lists of jobs show; null: the usual ones."""
