"""Accounts of people: rows, links to sign in, moves between labs."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api.leases.lease_views import LEASES_WITH_CONTEXT, lease_views
from api.people import deactivation
from api.people.schemas import LinkView, Me, Move, MoveView, MyChange, NewUser, UserChange, UserView
from api.web import audit
from api.web.bells import Bells
from api.web.credentials import issue_link, sign_out_everywhere
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.paging import page
from api.web.process import Process
from api.web.schemas import Page
from core.base.clock import utc_now
from core.base.errors import BadRequest, Conflict, NotFound
from core.base.ids import IdKind, new_id
from core.states import LIVE_JOB, WAITING_JOB, LeaseState
from core.tables.jobs import Job
from core.tables.kinds import LinkKind, Role
from core.tables.leases import Lease
from core.tables.people import Lab, Membership, User

LINK_LIFETIME = timedelta(minutes=10)
PASSWORD_LINK_LIFETIME = timedelta(days=1)
# Built once: to build a query takes longer than to ask it, and every page asks these.
OWN_LABS = (
    select(Lab.name)
    .join(Membership, Membership.lab_id == Lab.id)
    .where(Membership.user_id == bindparam("user_id"))
    .order_by(Lab.name)
)
OWN_JOBS = (
    select(Job.state, func.count())
    .where(Job.user_id == bindparam("user_id"), Job.state.in_(LIVE_JOB + WAITING_JOB))
    .group_by(Job.state)
)
NEXT_LEASE = (
    LEASES_WITH_CONTEXT.where(
        Lease.user_id == bindparam("user_id"),
        Lease.state.in_((LeaseState.ACTIVE, LeaseState.BOOKED)),
    )
    .order_by(Lease.hold_start)
    .limit(1)
)


def show_me(session: Session, person: Person) -> Me:
    """Return a person with labs, numbers of jobs, and the active or next lease."""
    user = session.get(User, person.id)
    own = {"user_id": person.id}
    labs = session.scalars(OWN_LABS, own).all()
    counts: dict[str, int] = {state: count for state, count in session.execute(OWN_JOBS, own)}
    next_lease = session.execute(NEXT_LEASE, own).all()
    leases = lease_views(session, next_lease)
    return Me(
        user=UserView.model_validate(user),
        labs=list(labs),
        queued=sum(counts.get(state, 0) for state in WAITING_JOB),
        running=sum(counts.get(state, 0) for state in LIVE_JOB),
        lease=leases[0] if leases else None,
        job_columns=user.job_columns if user else None,
    )


def change_own(
    session: Session,
    _: Bells,
    change: MyChange,
    person: Person,
    *,
    values: dict[str, object],
    now: datetime,
) -> UserView:
    """Change a person's own columns; a new password ends every other session and API token."""
    if values:
        session.execute(update(User).where(User.id == person.id).values(**values))
    if change.password is not None:
        sign_out_everywhere(session, person.id, now=now, but=person.token_id)
        audit.record(session, person.id, "user.password", person.id, now=now)
    return UserView.model_validate(session.get(User, person.id))


def login_link_to_oneself(session: Session, _: Bells, person: Person, process: Process) -> LinkView:
    """Issue a login link for the person who asks."""
    return _login_link(session, process, person, user_id=person.id)


def list_users(session: Session, *, limit: int, after: str | None) -> Page[UserView]:
    """Return a page of all people, newest first."""
    rows = page(session, select(User), User.id, after=after, limit=limit)
    views = [UserView.model_validate(user) for (user,) in rows]
    return Page[UserView](data=views, has_more=rows.has_more)


def create_user(
    session: Session,
    _: Bells,
    wanted: NewUser,
    person: Person,
    *,
    sent: KeyedRequest,
    password_hash: str | None,
    zone: str,
    now: datetime,
) -> UserView:
    """Insert a person, once for each key. Raises Conflict for a name or address that is taken."""
    user_id = sent.begin(session)
    if user_id is None:
        user = User(
            id=new_id(IdKind.USER),
            name=wanted.name,
            role=wanted.role,
            password_hash=password_hash,
            zone=zone,
            email=wanted.email,
            attributes=wanted.attributes,
            disabled=False,
            created_at=now,
        )
        add_user(session, user)
        audit.record(
            session, person.id, "user.add", user.id, now=now, name=user.name, role=user.role
        )
        user_id = user.id
        sent.remember(session, user_id)
    return UserView.model_validate(session.get(User, user_id))


def show_user(session: Session, user_id: str) -> UserView:
    """Return a person by id or name. Raises NotFound."""
    return UserView.model_validate(find_user(session, user_id))


def change_user(
    session: Session,
    bells: Bells,
    user_id: str,
    change: UserChange,
    person: Person,
    *,
    now: datetime,
    password_hash: str | None,
) -> UserView:
    """Change a person; who loses access gives leases back. Conflict for the last administrator."""
    # Administrators are locked together: if two remove each other at once, one of them stays.
    session.execute(
        select(User.id)
        .where(User.role == Role.ADMIN)
        .order_by(User.id)
        .with_for_update(key_share=True)
    ).all()
    user = find_user(session, user_id)
    loses = change.disabled is True or change.role not in (None, Role.ADMIN)
    if user.role is Role.ADMIN and loses:
        _require_other_admin(session, user)
    if change.role is not None:
        user.role = change.role
    left: dict[str, object] = {}
    if change.disabled and not user.disabled:
        left = deactivation.give_back_leases(
            session, user, person, bells, reason=change.reason or "", now=now
        )
    if change.disabled is not None:
        user.disabled = change.disabled
    if "email" in change.model_fields_set:
        user.email = change.email
    if change.attributes is not None:
        user.attributes = change.attributes
    if password_hash is not None:
        user.password_hash = password_hash
    if change.disabled or password_hash is not None:
        sign_out_everywhere(session, user.id, now=now)
    audit.record(
        session,
        person.id,
        "user.change",
        user.id,
        now=now,
        role=str(user.role),
        disabled=user.disabled,
        new_password=password_hash is not None,
        changed=sorted(change.model_fields_set - {"reason"}),
        **({"reason": change.reason} if change.reason else {}),
        **left,
    )
    _flush(session, user)
    return UserView.model_validate(user)


def login_link_to(
    session: Session, _: Bells, user_id: str, person: Person, process: Process
) -> LinkView:
    """Issue a login link for another person. Raises NotFound."""
    user = find_user(session, user_id)
    return _login_link(session, process, person, user_id=user.id)


def password_link_to(
    session: Session, _: Bells, user_id: str, person: Person, process: Process
) -> LinkView:
    """Issue a password link for a person, by id or name. Raises NotFound."""
    user = find_user(session, user_id)
    return password_link(session, process, user, maker=person)


def move_user(
    session: Session, _: Bells, user_id: str, move: Move, person: Person, *, now: datetime
) -> MoveView:
    """Move a person with booked leases to another lab. Conflict for a person in neither lab."""
    user = find_user(session, user_id, lock=True)
    old, new = find_lab(session, move.from_lab), find_lab(session, move.to_lab)
    if old.id == new.id:
        raise BadRequest("to_lab: it is the same as from_lab.", param="to_lab")
    membership = session.get(Membership, (old.id, user.id))
    if membership is None and session.get(Membership, (new.id, user.id)) is None:
        raise Conflict(
            f"from_lab: {user.name} is not in {old.name}.",
            code="not_a_member",
            param="from_lab",
        )
    if membership is not None:
        session.delete(membership)
    if session.get(Membership, (new.id, user.id)) is None:
        session.add(Membership(lab_id=new.id, user_id=user.id))
    moved = session.scalars(
        update(Lease)
        .where(
            Lease.user_id == user.id,
            Lease.lab_id == old.id,
            Lease.state == LeaseState.BOOKED,
        )
        .values(lab_id=new.id)
        .returning(Lease.id)
    ).all()
    if membership is not None or moved:  # else it has been done before
        audit.record(
            session,
            person.id,
            "user.move",
            user.id,
            now=now,
            from_lab=old.name,
            to_lab=new.name,
            leases=sorted(moved),
        )
    session.flush()
    return MoveView(
        user=UserView.model_validate(user),
        from_lab=old.name,
        to_lab=new.name,
        leases=sorted(moved),
    )


def add_user(session: Session, user: User) -> None:
    """Insert a person. Raises Conflict for a name or address that is taken."""
    session.add(user)
    _flush(session, user)


def password_link(
    session: Session,
    process: Process,
    user: User,
    *,
    maker: Person,
    lifetime: timedelta = PASSWORD_LINK_LIFETIME,
) -> LinkView:
    """Issue a link with which `user` sets a password, once."""
    now = utc_now()
    link, secret = issue_link(
        session,
        kind=LinkKind.PASSWORD,
        now=now,
        lifetime=lifetime,
        user_id=user.id,
        made_with=maker.made_with,
    )
    audit.record(session, maker.id, "user.password_link", user.id, now=now)
    return LinkView(
        url=f"{process.url}/new-password?secret={secret}",
        secret=secret,
        expires_at=link.expires_at,
    )


def find_user(
    session: Session, user_id: str, *, lock: bool = False, param: str | None = None
) -> User:
    """Return a person by id or name; with `lock`, lock the row. Raises NotFound."""
    query = select(User).where((User.id == user_id) | (User.name == user_id))
    user = session.scalars(query.with_for_update(key_share=True) if lock else query).one_or_none()
    if user is None:
        raise NotFound(f"There is no person {user_id!r}.", param=param)
    return user


def find_lab(session: Session, lab_id: str, *, lock: bool = False) -> Lab:
    """Return a lab by id or name; with `lock`, lock the row. Raises NotFound."""
    query = select(Lab).where((Lab.id == lab_id) | (Lab.name == lab_id)).order_by(Lab.id).limit(1)
    lab = session.scalars(query.with_for_update(key_share=True) if lock else query).first()
    if lab is None:
        raise NotFound(f"There is no lab {lab_id!r}.")
    return lab


def _flush(session: Session, user: User) -> None:
    """Write now. Raises Conflict for a name or address that is taken: the transaction is over."""
    given = {"name": user.name, "email": user.email}
    try:
        session.flush()
    except IntegrityError as error:
        param = "email" if "email" in str(error.orig) else "name"
        raise Conflict(
            f"{param}: {given[param]} is taken. Choose another one.",
            code=f"{param}_taken",
            param=param,
        ) from error


def _login_link(session: Session, process: Process, maker: Person, *, user_id: str) -> LinkView:
    now = utc_now()
    link, secret = issue_link(
        session,
        kind=LinkKind.LOGIN,
        now=now,
        lifetime=LINK_LIFETIME,
        user_id=user_id,
        made_with=maker.made_with,
    )
    audit.record(session, maker.id, "user.login_link", user_id, now=now)
    return LinkView(
        url=f"{process.url}/login?link={secret}", secret=secret, expires_at=link.expires_at
    )


def _require_other_admin(session: Session, user: User) -> None:
    others = session.scalar(
        select(func.count())
        .select_from(User)
        .where(User.role == Role.ADMIN, User.disabled.is_(False), User.id != user.id)
    )
    if not others:
        raise Conflict(f"{user.name} is the last administrator. Appoint another one first.")


def checked_zone(zone: str) -> str:
    """Return the zone's IANA name. Raises BadRequest for an unknown zone."""
    try:
        return ZoneInfo(zone).key
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadRequest(
            f"zone: {zone!r} is not a known time zone. Write it like Europe/Berlin or UTC.",
            param="zone",
        ) from error
