"""Views of workbenches."""

from api.web.schemas import Moment, View
from core.spec.workbench import WorkbenchKind
from core.states import JobState


class WorkbenchView(View):
    """A workbench: a job that its owner sits in front of, or the held sandbox of one that has
    failed."""

    id: str
    """Id of the job."""
    name: str
    kind: WorkbenchKind
    state: JobState
    reason: str
    """Reason of this state, in a sentence."""
    node: str | None
    lease: str | None
    """Lease that it runs in."""
    slots: int
    """Number of GPUs, or of CPU slots, that it has."""
    ends_at: Moment | None
    """Moment at which it is stopped. Null: it has not started."""
    can_be_entered: bool
    """True if it runs and its lease has begun."""
    no_browser: str
    """Reason why its program in the browser cannot be opened here; empty if it can, or if it has
    none."""
    idle_since: Moment | None
    """Moment since which it is idle, by the policy of its node. Null: it is in use."""
    idle_note: str
    """Use of its slots meanwhile, in sentences; empty if it is in use."""
    is_held: bool
    """True for the sandbox of a job that has failed (`hold_on_failure`): POST
    /v1/jobs/{id}/release ends it."""


class WorkbenchEntryView(View):
    """A way into a workbench in the browser."""

    url: str
    """Address with a ticket, which works once."""
    expires_at: Moment
