"""Closed sets of values that columns hold, one enum a column; states are in core.states."""

from enum import StrEnum


class Role(StrEnum):
    """Rights of a person; each role includes the ones before."""

    USER = "user"
    STAFF = "staff"
    ADMIN = "admin"


class ListOwner(StrEnum):
    """Owner of a list of hosts that programs may reach."""

    NODE_CLASS = "node_class"
    LAB = "lab"


class SharedKind(StrEnum):
    """Kind of a thing that a person may let others read."""

    DATASET = "dataset"
    MODEL = "model"
    TOKENIZER = "tokenizer"
    TEMPLATE = "template"
    JOB = "job"
    AGENDA = "agenda"
    STUDY = "study"
    REPORT = "report"


class AudienceKind(StrEnum):
    """Kind of those with whom a thing is shared."""

    PERSON = "person"
    GROUP = "group"
    """Members of a lab, or of labs that have this further name."""
    EVERYBODY = "everybody"


class TokenKind(StrEnum):
    """Origin of a bearer token."""

    API = "api"
    SESSION = "session"
    NODE = "node"


class Scope(StrEnum):
    """Permitted use of an API token; each scope includes `read`, and `all` every other."""

    READ = "read"
    """Read all that its person may read as a plain user."""
    JOBS = "jobs"
    """Submit and steer jobs and studies; upload and delete their files and secrets."""
    LEASES = "leases"
    """Book, change and give back leases; waitlist, calendars."""
    ACCOUNT = "account"
    """Tokens, sessions, notices, invitations."""
    ALL = "all"
    """All that its person may do, by their role too; password and login links."""


class LinkKind(StrEnum):
    """Purpose of a single-use secret."""

    FIRST_START = "first_start"
    LOGIN = "login"
    PASSWORD = "password"
    ENROL = "enrol"
    OIDC = "oidc"
    """A sign-in by an OpenID provider: the way there and back."""


class LetterKind(StrEnum):
    """Content of a letter with a link: an invitation, or a new password."""

    INVITATION = "invitation"
    PASSWORD = "password"


class LeaseKind(StrEnum):
    """Origin of a lease: booked on the hour grid, or walked in on a free node."""

    BOOKED = "booked"
    WALK_IN = "walk_in"


class AppointmentKind(StrEnum):
    """Event due in the life of a lease."""

    BEGIN = "begin"
    WARN = "warn"
    """Warning that nothing runs in the lease, with the time at which it will be taken back."""
    RECLAIM = "reclaim"
    """Taking back of a lease in which nothing has run."""
    NOTIFY = "notify"
    """Notice that the lease ends soon."""
    STOP = "stop"
    END = "end"


class AppointmentState(StrEnum):
    """State of an appointment. `void`: the lease has changed, another one stands in its place."""

    DUE = "due"
    CLAIMED = "claimed"
    KEPT = "kept"
    VOID = "void"


class WaitState(StrEnum):
    """State of an entry of the waitlist."""

    WAITING = "waiting"
    OFFERED = "offered"
    SERVED = "served"
    LEFT = "left"
    OVER = "over"
    """End of an entry: its last possible start has passed, or its offers were not answered."""


class OfferState(StrEnum):
    """State of a block that was held for a user on the waitlist."""

    OPEN = "open"
    ACCEPTED = "accepted"
    DECLINED = "declined"
    EXPIRED = "expired"


class NoticeState(StrEnum):
    """State of a notice: still to be sent, sent, or failed."""

    WAITING = "waiting"
    SENT = "sent"
    FAILED = "failed"


class OccupancyKind(StrEnum):
    """Kind of holder of a node's hours."""

    LEASE = "lease"
    OFFER = "offer"
    MAINTENANCE = "maintenance"
    DOWN = "down"


class SlotState(StrEnum):
    """State of a slot of a node: a GPU, or a CPU slot."""

    READY = "ready"
    DIRTY = "dirty"
    """Not known to be clean after its last job; no lease gets it until its node says that it is."""
    QUARANTINED = "quarantined"
    """Slot out of service: its GPU is not fit for jobs, or staff have taken it out."""


class RowResult(StrEnum):
    """State of a row of a clean-up."""

    PLANNED = "planned"
    SPARED = "spared"
    """Shown in the preview, never touched: protected, or active."""
    REMOVED = "removed"
    SKIPPED = "skipped"
    """Changed since the preview, no longer wrong, or left out by the person who applied it."""
    RESTORED = "restored"
    LOST = "lost"
    """Not restored: another lease has its hours."""


class Channel(StrEnum):
    """Way to send a notice to a person, whose account always shows it as well."""

    MAIL = "mail"
    WEBHOOK = "webhook"
    DIGEST = "digest"
    """One mail a day, with all of it."""
    OFF = "off"


class DeliveryState(StrEnum):
    """State of a notice on its way."""

    WAITING = "waiting"
    SENT = "sent"
    FAILED = "failed"
    KEPT = "kept"
    """Only shown in the account: by choice, or because there is nowhere to send it."""


class OnFailure(StrEnum):
    """Treatment of the jobs that have not begun when one has failed."""

    GO_ON = "go_on"
    STOP = "stop"


class SnapshotOrigin(StrEnum):
    """Origin of a snapshot of a workspace."""

    PROGRAM = "program"
    EDIT = "edit"
    """Files that its owner put or deleted by hand."""
    RESTORE = "restore"
    """Return of its owner to an earlier one."""


class WorkspaceAccess(StrEnum):
    """Access of an attempt to its owner's workspace."""

    WRITE = "write"
    READ = "read"
    """Another program writes to it."""
    SHARED = "shared"
    """Writing in the site's shared folder, as all of its owner's programs may."""
