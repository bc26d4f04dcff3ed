"""/v1/admin/cleanups: find leases with faults, remove those that were shown and no others, undo."""

from fastapi import APIRouter

from api.admin import cleanup_apply, cleanups
from api.admin.cleanup_plan import find
from api.admin.schemas_cleanups import (
    ApplyCleanup,
    CleanupView,
    LeaseTags,
    NewCleanup,
)
from api.leases.schemas import LeaseView
from api.web.auth import StaffOnly
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now

router = APIRouter(prefix="/v1/admin", tags=["administration"])


@router.post("/cleanups", status_code=201, summary="Preview a clean-up")
def create_cleanup(wanted: NewCleanup, person: StaffOnly, process: ProcessDep) -> CleanupView:
    """Preview a clean-up: its leases, the fault and refund of each, and a hash of all rows.

    Nothing is removed yet.
    """
    now = utc_now()
    with process.read() as session:
        found = find(session, wanted.selector, why=wanted.reason, now=now)
    return process.transact(cleanups.preview, wanted, person, found=found, now=now)


@router.get("/cleanups", summary="List clean-ups")
def list_cleanups(
    person: StaffOnly, process: ProcessDep, limit: Limit = 20, after: After = None
) -> Page[CleanupView]:
    """Return previewed, applied and undone clean-ups, newest first."""
    with process.read() as session:
        return cleanups.list_cleanups(session, limit=limit, after=after)


@router.get("/cleanups/{cleanup_id}", summary="Get a clean-up")
def get_cleanup(cleanup_id: PlainText, person: StaffOnly, process: ProcessDep) -> CleanupView:
    """Return a clean-up with its rows and the result of each."""
    with process.read() as session:
        return cleanups.show(session, cleanup_id, utc_now())


@router.post("/cleanups/{cleanup_id}/apply", summary="Apply a clean-up")
def apply_cleanup(
    cleanup_id: PlainText, wanted: ApplyCleanup, person: StaffOnly, process: ProcessDep
) -> CleanupView:
    """Remove the leases of the preview with this hash. Leases that have changed since are skipped.

    Each skipped row says why. Applying again changes nothing.
    """
    with process.read() as session:
        cleanups.show(session, cleanup_id, utc_now())  # 404 for an unknown clean-up
    cleanup_apply.apply(process, cleanup_id, wanted.hash, wanted.leave, person)
    with process.read() as session:
        return cleanups.show(session, cleanup_id, utc_now())


@router.post("/cleanups/{cleanup_id}/undo", summary="Undo a clean-up")
def undo_cleanup(cleanup_id: PlainText, person: StaffOnly, process: ProcessDep) -> CleanupView:
    """Book the removed leases again where the hours are still free and have not begun.

    A clean-up can be undone for a day after it was applied.
    """
    with process.read() as session:
        cleanups.show(session, cleanup_id, utc_now())
    cleanup_apply.undo(process, cleanup_id, person)
    with process.read() as session:
        return cleanups.show(session, cleanup_id, utc_now())


@router.post("/leases/{lease_id}/force-release", summary="End an active lease of another person")
def force_release(lease_id: PlainText, person: StaffOnly, process: ProcessDep) -> LeaseView:
    """End an active lease. Its node is quarantined first; its jobs save and stop.

    Resume the node when all is well.
    """
    now = utc_now()
    return process.transact(cleanups.force_release, lease_id, person, now=now)


@router.put("/leases/{lease_id}/tags", summary="Tag or protect a lease")
def put_tags(
    lease_id: PlainText, wanted: LeaseTags, person: StaffOnly, process: ProcessDep
) -> LeaseView:
    """Set the tags and the protection of a lease.

    Clean-ups find leases by tags, and never remove protected ones.
    """
    now = utc_now()
    return process.transact(cleanups.put_tags, lease_id, wanted, person, now=now)
