"""Labs and their members."""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api.people.schemas import LabChange, LabView, NewLab, NewMember
from api.people.users import find_lab, find_user
from api.web import audit
from api.web.bells import Bells
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.paging import page
from api.web.schemas import Page
from core.base.clock import utc_now
from core.base.errors import Conflict
from core.base.ids import IdKind, new_id
from core.tables.people import Lab, Membership, User


def list_labs(session: Session, person: Person, *, limit: int, after: str | None) -> Page[LabView]:
    """Return a page of labs, newest first: all of them for staff, otherwise one's own."""
    query = select(Lab)
    if not person.is_staff:
        query = query.join(Membership, Membership.lab_id == Lab.id).where(
            Membership.user_id == person.id
        )
    rows = page(session, query, Lab.id, after=after, limit=limit)
    data = [_view(session, lab) for (lab,) in rows]
    return Page[LabView](data=data, has_more=rows.has_more)


def create_lab(
    session: Session,
    _: Bells,
    wanted: NewLab,
    person: Person,
    *,
    sent: KeyedRequest,
    now: datetime,
) -> LabView:
    """Insert a lab, once for each key. Raises Conflict for a name that is taken."""
    lab_id = sent.begin(session)
    if lab_id is None:
        lab = Lab(
            id=new_id(IdKind.LAB),
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
        lab_id = lab.id
        sent.remember(session, lab_id)
    return _view(session, find_lab(session, lab_id))


def change_lab(
    session: Session, _: Bells, lab_id: str, change: LabChange, person: Person
) -> LabView:
    """Change a lab's weight or groups. Raises NotFound."""
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


def add_member(
    session: Session, _: Bells, lab_id: str, wanted: NewMember, person: Person, *, now: datetime
) -> LabView:
    """Add a person to a lab, or set whether a member leads it. Raises NotFound."""
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


def remove_member(
    session: Session, _: Bells, lab_id: str, user: str, person: Person, *, now: datetime
) -> LabView:
    """Take a person out of a lab. Raises NotFound."""
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
