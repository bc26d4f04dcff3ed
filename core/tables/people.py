"""People, their labs, and their credentials."""

from datetime import datetime

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from core.tables.base import Base, Document, one_of
from core.tables.kinds import LinkKind, Role, TokenKind


class User(Base):
    """A person. Quotas are checked under a lock on this row."""

    __tablename__ = "users"
    __table_args__ = (
        CheckConstraint(one_of("role", Role), name="role"),
        Index("uq_users_email", "email", unique=True),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    role: Mapped[Role]
    password_hash: Mapped[str | None]
    zone: Mapped[str] = mapped_column(default="UTC")
    """IANA name of the zone in which this person wants to see times."""
    email: Mapped[str | None]
    """Address for mail; in small letters, so that one address is one person."""
    attributes: Mapped[Document] = mapped_column(default=dict, server_default="{}")
    """Texts by name, such as `cohort`, that booking rules may ask for."""
    job_columns: Mapped[list[str] | None] = mapped_column(JSON)
    """Columns that this person's lists of jobs show; None: the usual ones."""
    disabled: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime]


class Lab(Base):
    """A group of people who share a budget."""

    __tablename__ = "labs"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    weight: Mapped[float] = mapped_column(default=1.0, server_default="1")
    """Share of the nodes, relative to the other labs'."""
    groups: Mapped[list[str]] = mapped_column(JSON, default=list, server_default="[]")
    """Further names under which booking rules find its members, such as a course's."""
    created_at: Mapped[datetime]


class Membership(Base):
    """A person in a lab."""

    __tablename__ = "memberships"

    lab_id: Mapped[str] = mapped_column(ForeignKey("labs.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True, index=True)
    is_lead: Mapped[bool] = mapped_column(default=False)


class Token(Base):
    """A bearer token of a person or of a node; only its SHA-256 is kept."""

    __tablename__ = "tokens"
    __table_args__ = (
        CheckConstraint(one_of("kind", TokenKind), name="kind"),
        CheckConstraint("(user_id IS NULL) <> (node_id IS NULL)", name="one_holder"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[TokenKind]
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id"), index=True)
    node_id: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"), index=True)
    name: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(JSON, default=list, server_default="[]")
    """Permitted uses of a person's token; a session has `all`, a node's token has none."""
    made_with: Mapped[str | None] = mapped_column(ForeignKey("tokens.id"), index=True)
    """The API token that it was made with, and ends with; None if its maker had signed in."""
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Identity(Base):
    """Identity of a person at an OpenID provider. Found by issuer and subject, never by the
    address."""

    __tablename__ = "identities"

    issuer: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    email: Mapped[str | None]
    """The verified address by which they were linked; it may be somebody else's by now."""
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime]


class Link(Base):
    """A secret that works once: first start, login, a new password, enrolment of a node."""

    __tablename__ = "links"
    __table_args__ = (CheckConstraint(one_of("kind", LinkKind), name="kind"),)

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[LinkKind]
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id"))
    node_name: Mapped[str | None]
    node_class: Mapped[str | None]
    made_with: Mapped[str | None] = mapped_column(ForeignKey("tokens.id"))
    """The API token that it was made with, and ends with."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]


class Invite(Base):
    """A link with which one person makes an account for themselves; only its SHA-256 is kept."""

    __tablename__ = "invites"

    id: Mapped[str] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    lab_id: Mapped[str | None] = mapped_column(ForeignKey("labs.id"), index=True)
    """The lab that they join with it, if any."""
    email: Mapped[str | None]
    attributes: Mapped[Document]
    """Attributes of the new account, as `User.attributes`."""
    invited_by: Mapped[str] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]
    used_by: Mapped[str | None] = mapped_column(ForeignKey("users.id"))
    revoked_at: Mapped[datetime | None]


class Grant(Base):
    """An exception: lifts one rule for one person, for blocks that start in [starts_at, ends_at).

    Shown to everybody.
    """

    __tablename__ = "grants"
    __table_args__ = (CheckConstraint("starts_at < ends_at", name="time"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    rule: Mapped[str]
    """The reason code that it lifts, such as `quota_main`."""
    extra: Mapped[int]
    """Number of further leases or node-hours; ignored where the rule has no number."""
    starts_at: Mapped[datetime]
    ends_at: Mapped[datetime]
    granted_by: Mapped[str] = mapped_column(ForeignKey("users.id"))
    why: Mapped[str]
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
