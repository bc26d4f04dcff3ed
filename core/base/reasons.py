"""Reason codes: the machine's word beside each sentence that says why. Pure.

Every event, every job and every settled lease has one, and so has every booking rule that a verdict
names. An attempt that exited has its outcome as its code (`core.states.Outcome`). Stored codes stay
as they are: a code may be added, never renamed. `docs/states.md` lists them.
"""

from typing import NewType

from core.states import DocumentedEnum, Outcome

NamedCode = NewType("NamedCode", str)
"""A code with a name of the policy in it: `quota_main`, `violation:lab_cap`."""


class ReasonCode(DocumentedEnum):
    """The reason for a state, an event, a settlement or a refusal."""

    # A job: its events.
    SUBMITTED = "submitted", "Its owner submitted it."
    ASSIGNED = "assigned", "An attempt was given nodes and slots."
    STARTING = "starting", "Its ranks are being started."
    RUNNING = "running", "It trains."
    FAILED_HELD = "failed_held", "It has failed, and its sandbox is held for its owner."
    RESUMED = "resumed", "Its owner resumed it after a pause."
    HELD = "held", "Paused: it was stopped too often before a first checkpoint."
    AGENDA_STOPPED = "agenda_stopped", "Not run: an earlier job of its agenda has failed."
    PASS = "pass", "Its certificate: its first steps are on the curve of one rank."
    FAIL = "fail", "Its certificate: its first steps are off the curve of one rank."
    EXEMPT = "exempt", "Its certificate: a technique that promises no curve was used."
    AGE = "age", "Its logs, metrics or files were deleted because of their age."
    STORAGE = "storage", "A checkpoint was deleted to make room within the storage limit."

    # A job: why it waits.
    QUEUE = "queue", "A job before it in the queue starts first."
    NODE_BUSY = "node_busy", "Its nodes are busy with another job."
    NODE_LEASED = "node_leased", "Its nodes are leased, and no gap before is long enough."
    NODE_HELD = "node_held", "Its nodes are held for maintenance."
    NODE_NOT_CLEAN = "node_not_clean", "Its nodes have not passed their clean check yet."
    BOOKED_SOON = "booked_soon", "Free nodes are booked before its wall time would be over."
    NODES_UNAVAILABLE = "nodes_unavailable", "No node that it fits takes work now."
    FITS_NOWHERE = "fits_nowhere", "It needs more memory or ranks than any node here has."
    NO_SUCH_CLASS = "no_such_class", "There is no node of the class that it names any more."
    UNREADABLE = "unreadable", "This version of the platform can't read its spec."
    USER_DISABLED = "user_disabled", "The account of its owner is disabled."
    SAVING = "saving", "Its last checkpoint or its workspace is still being copied to the store."
    BACK_OFF = "back_off", "It is tried again some time after a failure."
    AGENDA_ORDER = "agenda_order", "It is not its turn in its agenda."
    SHARE_TAKEN_BACK = "share_taken_back", "Borrowers of its lab's share leave, saved, for it."
    LEASE_NOT_BEGUN = "lease_not_begun", "The lease that it names has not begun."
    LEASE_BUSY = "lease_busy", "An earlier job runs in its lease."
    LEASE_LENT = "lease_lent", "A guest leaves its lease, saved, for it."
    LEASE_NODE_UNAVAILABLE = "lease_node_unavailable", "The node of its lease takes no work now."
    LEASE_NODE_NOT_CLEAN = "lease_node_not_clean", "The node of its lease is being cleaned."
    LEASE_DOES_NOT_FIT = "lease_does_not_fit", "It does not fit the node of its lease."
    LEASE_ENDS = "lease_ends", "Too little is left of its lease; it joins the queue at its end."

    # A lease: its events, and how it was settled (`settled_as`).
    BOOKED = "booked", "Its owner booked it."
    WALK_IN = "walk_in", "It was taken off the grid, on a free node, for a job."
    BEGAN = "began", "Its time has come and its node was ready."
    STOPPED = "stopped", "It was ended at once by staff, or because its owner was disabled."
    ENDING = "ending", "Its usable end has come."
    ENDED = "ended", "Its hours or its node's clean-up are over."
    USED = "used", "Used to its end; it counts."
    CANCELLED = "cancelled", "Released before it began, in time; it does not count."
    LATE_CANCEL = "late_cancel", "Released too late; it counts unless the policy refunds it."
    RELEASED = "released", "Released after it began; it counts up to then, or by the policy."
    REBOOKED = "rebooked", "Released, and others have all of its hours; it does not count."
    NO_SHOW = "no_show", "Taken back because nothing had run in it; it counts."
    SWAPPED = "swapped", "Given for another lease at once; it does not count."
    RESTORED = "restored", "Its block was booked again as another lease; this one does not count."
    NODE_FAULT = "node_fault", "Refunded: its node could not be used for too long."

    # A node.
    ENROLLED = "enrolled", "It joined with a single-use token."
    FIRST_HEARTBEAT = "first_heartbeat", "It was heard from for the first time."
    READY = "ready", "It reported itself clean."
    NOT_CLEAN = "not_clean", "A lease on it ended without proof that it is clean."
    DRAIN = "drain", "Staff drain it."
    MAINTENANCE = "maintenance", "Staff work on it, or a lease had to go for that."
    RESUME = "resume", "Staff put it back to work."
    QUARANTINE = "quarantine", "Staff took it out of service."
    FORCE_RELEASE = "force_release", "Staff ended a lease on it by force; it is to be looked at."
    RETIRE = "retire", "Staff retired it."

    # A rule that a booking, a walk-in or an extension breaks.
    OFF_GRID = "off_grid", "Blocks do not start at this minute."
    BAD_BLOCK_LENGTH = "bad_block_length", "Blocks do not have this length."
    BAD_SIZE = "bad_size", "Leases on the node do not have this number of GPUs."
    SHARING_UNAVAILABLE = "sharing_unavailable", "The node can't keep two owners apart."
    IN_THE_PAST = "in_the_past", "The start is over."
    TOO_SOON = "too_soon", "The start is nearer than the policy's notice."
    OUTSIDE_HORIZON = "outside_horizon", "The start is further ahead than may be booked."
    OUTSIDE_WINDOW = "outside_window", "No window covers the block."
    NOT_OPEN_YET = "not_open_yet", "Booking of the window has not opened."
    CROSSES_BAND = "crosses_band", "The block lies partly in a band, such as the night."
    NOT_ELIGIBLE = "not_eligible", "The policy is not for this person."
    COHORT_DAY = "cohort_day", "It is not this person's day."
    DISTINCT_TIMES = "distinct_times", "The leases of the quota must lie at different times."
    LAB_CAP = "lab_cap", "The hours of the lab would exceed their cap."
    USER_CAP = "user_cap", "The hours of the person would exceed their cap."
    TOO_MANY_OPEN = "too_many_open", "Too many leases of the person are open."
    OVERLAPS_OWN = "overlaps_own", "Too many leases of the person would overlap."
    CHURN = "churn", "The person has cancelled too many leases today."
    NO_SHOWS = "no_shows", "The person has had too many no-shows."
    MERGED_TOO_LONG = "merged_too_long", "With the lease beside it the block is too long."
    BACK_TO_BACK = "back_to_back", "The block lies too near to another lease of the person."
    LEAVES_GAP = "leaves_gap", "The block leaves a gap that no block fits."
    NODE_TAKEN = "node_taken", "Others hold the node, or too much of it, at that time."
    NODE_DOWN = "node_down", "The node takes no leases now."
    WALK_IN_REFUSED = "walk_in_refused", "The policy allows no walk-ins on the node."
    EXTENSION_REFUSED = "extension_refused", "The policy does not let leases be extended."


Code = ReasonCode | Outcome | NamedCode

QUOTA = "quota_"
VIOLATION = "violation:"


def quota_code(name: str) -> NamedCode:
    """Return the code of a block that fits no alternative of quota `name`."""
    return NamedCode(f"{QUOTA}{name}")


def violation_code(rule: str) -> NamedCode:
    """Return the code of a lease that staff took away because it breaks `rule`."""
    return NamedCode(f"{VIOLATION}{rule}")


def stored_code(code: str) -> Code:
    """Return a code as the database has it."""
    try:
        return ReasonCode(code)
    except ValueError:
        return NamedCode(code)
