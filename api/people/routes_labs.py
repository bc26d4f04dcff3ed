"""/v1/labs: groups of people."""

from fastapi import APIRouter

from api.people import labs
from api.people.schemas import LabChange, LabView, NewLab, NewMember
from api.web.auth import AdminOnly, SignedIn
from api.web.idempotency import IdempotencyKey, keyed
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now

router = APIRouter(prefix="/v1/labs", tags=["people"])


@router.get("", summary="List labs")
def list_labs(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[LabView]:
    """Return labs, newest first: all of them for staff, otherwise those that you are in."""
    with process.read() as session:
        return labs.list_labs(session, person, limit=limit, after=after)


@router.post("", status_code=201, summary="Make a lab")
def create_lab(
    wanted: NewLab, person: AdminOnly, process: ProcessDep, key: IdempotencyKey = None
) -> LabView:
    """Make a lab without members."""
    now = utc_now()
    sent = keyed(person, key, "/v1/labs", wanted.model_dump_json().encode())
    return process.transact(labs.create_lab, wanted, person, now=now, sent=sent)


@router.patch("/{lab_id}", summary="Change a lab's weight or groups")
def change_lab(
    lab_id: PlainText, change: LabChange, person: AdminOnly, process: ProcessDep
) -> LabView:
    """Change a lab's weight or groups. Fields that are not sent stay as they are."""
    return process.transact(labs.change_lab, lab_id, change, person)


@router.post("/{lab_id}/members", summary="Add a person to a lab")
def add_member(
    lab_id: PlainText, wanted: NewMember, person: AdminOnly, process: ProcessDep
) -> LabView:
    """Add a person to a lab. For a member this only sets whether the person leads the lab."""
    now = utc_now()
    return process.transact(labs.add_member, lab_id, wanted, person, now=now)


@router.delete("/{lab_id}/members/{user}", summary="Remove a person from a lab")
def remove_member(
    lab_id: PlainText, user: PlainText, person: AdminOnly, process: ProcessDep
) -> LabView:
    """Take a person out of a lab. Nothing else of the person changes."""
    now = utc_now()
    return process.transact(labs.remove_member, lab_id, user, person, now=now)
