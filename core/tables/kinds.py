"""The words that columns hold, one enum a column; those of states are in core.states."""

from enum import StrEnum


class Role(StrEnum):
    """What a person may do; each includes the ones before."""

    USER = "user"
    STAFF = "staff"
    ADMIN = "admin"


class TokenKind(StrEnum):
    """How a bearer token came about."""

    API = "api"
    SESSION = "session"
    NODE = "node"


class Scope(StrEnum):
    """What an API token may be used for; each includes `read`, and `all` every other."""

    READ = "read"
    """Look at what its person may look at, as a plain user."""
    JOBS = "jobs"
    """Submit and steer jobs and studies; upload and delete their files and secrets."""
    LEASES = "leases"
    """Book, change and give back leases; waitlist, calendars."""
    ACCOUNT = "account"
    """Tokens, sessions, notices, invitations."""
    ALL = "all"
    """Everything that its person may do, by their role too; password and login links."""


class LinkKind(StrEnum):
    """What a single-use secret opens."""

    FIRST_START = "first_start"
    LOGIN = "login"
    PASSWORD = "password"
    ENROL = "enrol"
    OIDC = "oidc"
    """A sign-in by an OpenID provider: the way there and back."""


class LeaseKind(StrEnum):
    """Booked on the hour grid, or walked in on a free node."""

    BOOKED = "booked"
    WALK_IN = "walk_in"


class AppointmentKind(StrEnum):
    """What is to happen in the life of a lease."""

    BEGIN = "begin"
    WARN = "warn"
    """Nothing runs in it: say when it will be taken back."""
    RECLAIM = "reclaim"
    """Nothing has run in it: take it back."""
    NOTIFY = "notify"
    """Say that it ends soon."""
    STOP = "stop"
    END = "end"


class AppointmentState(StrEnum):
    """Whether it has happened. `void`: the lease has changed, another one stands in its place."""

    DUE = "due"
    CLAIMED = "claimed"
    KEPT = "kept"
    VOID = "void"


class WaitState(StrEnum):
    """Where a wish on the waitlist stands."""

    WAITING = "waiting"
    OFFERED = "offered"
    SERVED = "served"
    LEFT = "left"
    OVER = "over"
    """Its last possible start has passed."""


class OfferState(StrEnum):
    """What became of a block that was held for somebody on the waitlist."""

    OPEN = "open"
    ACCEPTED = "accepted"
    DECLINED = "declined"
    EXPIRED = "expired"


class NoticeState(StrEnum):
    """Whether a notice has left."""

    WAITING = "waiting"
    SENT = "sent"
    FAILED = "failed"


class OccupancyKind(StrEnum):
    """What may hold a node's hours."""

    LEASE = "lease"
    OFFER = "offer"
    MAINTENANCE = "maintenance"
    DOWN = "down"


class RowResult(StrEnum):
    """What became of a row of a clean-up."""

    PLANNED = "planned"
    SPARED = "spared"
    """Shown in the preview, never touched: protected, or active."""
    REMOVED = "removed"
    SKIPPED = "skipped"
    """Changed since the preview, no longer wrong, or left out by whoever applied it."""
    RESTORED = "restored"
    LOST = "lost"
    """Somebody else has its hours: it could not be restored."""


class Channel(StrEnum):
    """How a notice reaches a person. It is always shown in their account as well."""

    MAIL = "mail"
    WEBHOOK = "webhook"
    DIGEST = "digest"
    """One mail a day, with all of it."""
    OFF = "off"


class DeliveryState(StrEnum):
    """What became of a notice on its way."""

    WAITING = "waiting"
    SENT = "sent"
    FAILED = "failed"
    KEPT = "kept"
    """Only shown in the account: by choice, or because there is nowhere to send it."""
