"""/v1/labs: groups of people."""

from fastapi import APIRouter
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api.people.routes import find_lab, find_user
from api.people.schemas import LabChange, LabView, NewLab, NewMember
from api.web import audit
from api.web.auth import AdminOnly, SignedIn
from api.web.idempotency import IdempotencyKey, fingerprint, once
from api.web.paging import page
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import Conflict
from core.base.ids import Kind, new_id
from core.tables.people import Lab, Membership, User

router = APIRouter(prefix="/v1/labs", tags=["people"])


@router.get("", summary="List labs")
def list_labs(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[LabView]:
    """Return labs, newest first: all of them for staff, otherwise those that you are in."""
    query = select(Lab)
    if not person.is_staff:
        query = query.join(Membership, Membership.lab_id == Lab.id).where(
            Membership.user_id == person.id
        )
    with process.read() as session:
        rows = page(session, query, Lab.id, after=after, limit=limit)
        data = [_view(session, lab) for (lab,) in rows]
    return Page[LabView](data=data, has_more=rows.has_more)


@router.post("", status_code=201, summary="Make a lab")
def create_lab(
    wanted: NewLab, person: AdminOnly, process: ProcessDep, key: IdempotencyKey = None
) -> LabView:
    """Make a lab without members."""
    now = utc_now()
    body_sha256 = fingerprint("POST", "/v1/labs", wanted.model_dump_json().encode())
    with process.write() as (session, _):

        def make() -> str:
            lab = Lab(
                id=new_id(Kind.LAB),
                name=wanted.name,
                weight=wanted.weight,
                groups=wanted.groups,
                created_at=now,
            )
            try:
                with session.begin_nested():
                    session.add(lab)
            except IntegrityError as error:
                raise Conflict(
                    f"name: there already is a lab {wanted.name}. Choose another name.",
                    code="name_taken",
                    param="name",
                ) from error
            audit.record(session, person.id, "lab.add", lab.id, now=now, name=lab.name)
            return lab.id

        lab_id = once(
            session, user_id=person.id, key=key, body_sha256=body_sha256, now=now, make=make
        )
        return _view(session, find_lab(session, lab_id))


@router.patch("/{lab_id}", summary="Change a lab's weight or groups")
def change_lab(
    lab_id: PlainText, change: LabChange, person: AdminOnly, process: ProcessDep
) -> LabView:
    """Change a lab's weight or groups. Fields that are not sent stay as they are."""
    with process.write() as (session, _):
        lab = find_lab(session, lab_id, lock=True)
        before: dict[str, object] = {"weight": lab.weight, "groups": lab.groups}
        if change.weight is not None:
            lab.weight = change.weight
        if change.groups is not None:
            lab.groups = change.groups
        after: dict[str, object] = {"weight": lab.weight, "groups": lab.groups}
        if after != before:
            audit.record(
                session, person.id, "lab.change", lab.id, now=utc_now(), before=before, after=after
            )
        session.flush()
        return _view(session, lab)


@router.post("/{lab_id}/members", summary="Add a person to a lab")
def add_member(
    lab_id: PlainText, wanted: NewMember, person: AdminOnly, process: ProcessDep
) -> LabView:
    """Add a person to a lab. For a member this only sets whether the person leads the lab."""
    now = utc_now()
    with process.write() as (session, _):
        lab = find_lab(session, lab_id, lock=True)
        user = find_user(session, wanted.user, param="user")
        membership = session.get(Membership, (lab.id, user.id))
        if membership is None:
            session.add(Membership(lab_id=lab.id, user_id=user.id, is_lead=wanted.is_lead))
        else:
            membership.is_lead = wanted.is_lead
        audit.record(session, person.id, "lab.add_member", lab.id, now=now, user=user.name)
        session.flush()
        return _view(session, lab)


@router.delete("/{lab_id}/members/{user}", summary="Remove a person from a lab")
def remove_member(
    lab_id: PlainText, user: PlainText, person: AdminOnly, process: ProcessDep
) -> LabView:
    """Take a person out of a lab. Nothing else of the person changes."""
    now = utc_now()
    with process.write() as (session, _):
        lab = find_lab(session, lab_id, lock=True)
        membership = session.get(Membership, (lab.id, find_user(session, user, param="user").id))
        if membership is not None:
            session.delete(membership)
            audit.record(session, person.id, "lab.remove_member", lab.id, now=now, user=user)
        session.flush()
        return _view(session, lab)


def _view(session: Session, lab: Lab) -> LabView:
    members = session.execute(
        select(User.name, Membership.is_lead)
        .join(Membership, Membership.user_id == User.id)
        .where(Membership.lab_id == lab.id)
        .order_by(User.name)
    ).all()
    return LabView(
        id=lab.id,
        name=lab.name,
        weight=lab.weight,
        groups=lab.groups,
        members=[name for name, _ in members],
        leads=[name for name, is_lead in members if is_lead],
        created_at=lab.created_at,
    )
