"""/v1/me, /v1/users: people."""

from datetime import timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fastapi import APIRouter, Response
from sqlalchemy import bindparam, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api.leases.lease_views import LEASES_WITH_CONTEXT, lease_views
from api.people import deactivation
from api.people.schemas import LinkView, Me, Move, MoveView, MyChange, NewUser, UserChange, UserView
from api.web import audit
from api.web.auth import AdminOnly, SignedIn, StaffOnly
from api.web.credentials import issue_link, sign_out_everywhere
from api.web.idempotency import IdempotencyKey, fingerprint, once
from api.web.identity import Person
from api.web.paging import page
from api.web.passwords import hash_password, verify_password
from api.web.process import Process, ProcessDep
from api.web.schemas import Page
from api.web.scopes import MissingScope
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import BadRequest, Conflict, Forbidden, NotFound
from core.base.ids import Kind, new_id
from core.states import LIVE_JOB, WAITING_JOB, LeaseState
from core.tables.jobs import Job
from core.tables.kinds import LinkKind, Role, Scope
from core.tables.leases import Lease
from core.tables.people import Lab, Membership, User

router = APIRouter(prefix="/v1", tags=["people"])

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


@router.get("/me", summary="Who am I?")
def get_me(person: SignedIn, process: ProcessDep) -> Me:
    """Return your account, labs, numbers of queued and running jobs, and active or next lease."""
    with process.read() as session:
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
    )


@router.patch("/me", summary="Change my time zone or password")
def change_me(change: MyChange, person: SignedIn, process: ProcessDep) -> UserView:
    """Change your zone or password. A new password requires the present one, if there is one.

    A new password signs you out everywhere else: every other session and every other API token
    ends.
    """
    values: dict[str, object] = {}
    if change.zone is not None:
        values["zone"] = checked_zone(change.zone)
    if change.password is not None:
        if Scope.ALL not in person.scopes:
            raise MissingScope(Scope.ALL, person.scopes)
        with process.read() as session:
            user = session.get(User, person.id)
        assert user is not None
        if user.password_hash is not None:
            process.limits.count_password_change(person.id)
            if not verify_password(change.current_password or "", user.password_hash):
                raise Forbidden("current_password is wrong.", param="current_password")
        values["password_hash"] = hash_password(change.password)
    now = utc_now()
    with process.write() as (session, _):
        if values:
            session.execute(update(User).where(User.id == person.id).values(**values))
        if change.password is not None:
            sign_out_everywhere(session, person.id, now=now, but=person.token_id)
            audit.record(session, person.id, "user.password", person.id, now=now)
        return UserView.model_validate(session.get(User, person.id))


@router.post("/me/login-link", status_code=201, summary="Create a login link for myself")
def create_login_link(person: SignedIn, process: ProcessDep) -> LinkView:
    """Make a login link for yourself, which works once, for ten minutes.

    A link made with an API token ends with that token, and so does the session that it opens.
    """
    with process.write() as (session, _):
        return _login_link(session, process, person, user_id=person.id)


@router.get("/users", summary="List people")
def list_users(
    person: StaffOnly, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[UserView]:
    """Return all people who have an account, newest first."""
    with process.read() as session:
        rows = page(session, select(User), User.id, after=after, limit=limit)
    views = [UserView.model_validate(user) for (user,) in rows]
    return Page[UserView](data=views, has_more=rows.has_more)


@router.post("/users", status_code=201, summary="Add a person")
def create_user(
    wanted: NewUser, person: AdminOnly, process: ProcessDep, key: IdempotencyKey = None
) -> UserView:
    """Add a person. Without a password the person signs in by a login link."""
    password_hash = hash_password(wanted.password) if wanted.password else None
    zone = checked_zone(wanted.zone)
    now = utc_now()
    body_sha256 = fingerprint("POST", "/v1/users", wanted.model_dump_json().encode())
    with process.write() as (session, _):

        def make() -> str:
            user = User(
                id=new_id(Kind.USER),
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
            return user.id

        user_id = once(
            session, user_id=person.id, key=key, body_sha256=body_sha256, now=now, make=make
        )
        return UserView.model_validate(session.get(User, user_id))


@router.get("/users/{user_id}", summary="Get a person")
def get_user(user_id: PlainText, person: StaffOnly, process: ProcessDep) -> UserView:
    """Return a person by id or name."""
    with process.read() as session:
        return UserView.model_validate(find_user(session, user_id))


@router.patch("/users/{user_id}", summary="Change a person")
def change_user(
    user_id: PlainText, change: UserChange, person: AdminOnly, process: ProcessDep
) -> UserView:
    """Change a person's role, password, access, mail address or attributes.

    Disabling ends sessions and tokens at once, cancels booked leases and stops active ones. Jobs
    in an active lease save a checkpoint first. Jobs and files are kept.
    """
    password_hash = hash_password(change.password) if change.password else None
    now = utc_now()
    with process.write() as (session, bells):
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
            left = deactivation.give_back_leases(session, user, person, bells, now=now)
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
            changed=sorted(change.model_fields_set),
            **left,
        )
        _flush(session, user)
        return UserView.model_validate(user)


@router.delete("/users/{user_id}", status_code=204, summary="Disable a person")
def disable_user(user_id: PlainText, person: AdminOnly, process: ProcessDep) -> Response:
    """Disable a person, who can't sign in any more. Name, jobs and history are kept."""
    change_user(user_id, UserChange(disabled=True), person, process)
    return Response(status_code=204)


@router.post(
    "/users/{user_id}/login-link", status_code=201, summary="Create a login link for a person"
)
def create_link_for_user(user_id: PlainText, person: AdminOnly, process: ProcessDep) -> LinkView:
    """Make a login link for a person who has no password or has forgotten it.

    The link works once, for ten minutes.
    """
    with process.write() as (session, _):
        user = find_user(session, user_id)
        return _login_link(session, process, person, user_id=user.id)


@router.post(
    "/users/{user_id}/password-link", status_code=201, summary="Create a password link for a person"
)
def create_password_link(user_id: PlainText, person: AdminOnly, process: ProcessDep) -> LinkView:
    """Make a link to set a password, for a person who has forgotten theirs or never had one.

    The link works once, for a day.
    """
    with process.write() as (session, _):
        user = find_user(session, user_id)
        return password_link(session, process, user, maker=person)


@router.post("/users/{user_id}/move", summary="Move a person from one lab to another")
def move_user(user_id: PlainText, move: Move, person: AdminOnly, process: ProcessDep) -> MoveView:
    """Move a person from one lab to another. Booked leases move along.

    Past and active leases stay with the old lab, and so does their use.
    """
    now = utc_now()
    with process.write() as (session, _):
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
