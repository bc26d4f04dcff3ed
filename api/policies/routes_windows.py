"""/v1/windows: times in which leases may lie on nodes. Documents bring them; staff may change
them."""

from typing import Annotated

from fastapi import APIRouter, Query

from api.policies import pool_windows
from api.policies.pool_windows import Orphans
from api.policies.schemas import NewWindow, WindowChange, WindowPlan, WindowView
from api.web.auth import SignedIn, StaffOnly
from api.web.idempotency import IdempotencyKey, keyed
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import PlainText
from core.base.clock import utc_now

router = APIRouter(prefix="/v1/windows", tags=["policies"])


@router.get("", summary="List windows")
def list_windows(
    person: SignedIn,
    process: ProcessDep,
    policy: Annotated[PlainText | None, Query(description="Only windows of this policy.")] = None,
) -> Page[WindowView]:
    """List windows: the times in which leases may lie on pools, and the moment from which each may
    be booked; earliest first."""
    with process.read() as session:
        return pool_windows.list_windows(session, policy)


@router.post("", status_code=201, summary="Add a window")
def add_window(
    wanted: NewWindow, person: StaffOnly, process: ProcessDep, key: IdempotencyKey = None
) -> WindowView:
    """Add a window in which leases may lie on some pools. The document is not changed: its next
    version brings its own windows again."""
    now = utc_now()
    sent = keyed(person, key, "/v1/windows", wanted.model_dump_json().encode())
    return process.transact(pool_windows.add_window, wanted, person, now=now, sent=sent)


@router.patch("/{window_id}", summary="Change a window")
def change_window(
    window_id: PlainText, wanted: WindowChange, person: StaffOnly, process: ProcessDep
) -> WindowPlan:
    """Change a window. Without `plan`, the answer lists the booked leases that would lie outside;
    with the hash of that answer the change is made, if nothing has changed since."""
    now = utc_now()
    return process.transact(pool_windows.change_window, window_id, wanted, person, now=now)


@router.delete("/{window_id}", summary="Delete a window")
def delete_window(
    window_id: PlainText,
    person: StaffOnly,
    process: ProcessDep,
    orphans: Annotated[
        Orphans, Query(description="Treatment of the leases in the window.")
    ] = "keep",
    plan: Annotated[
        PlainText | None, Query(description="Hash of the plan that you have read.")
    ] = None,
) -> WindowPlan:
    """Delete a window. Without `plan`, the answer lists the booked leases in it; with the hash of
    that answer the window is deleted, if nothing has changed since."""
    now = utc_now()
    return process.transact(pool_windows.delete_window, window_id, person, orphans, plan, now=now)
