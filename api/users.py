"""/v1/me, /v1/users: people."""

from datetime import timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fastapi import APIRouter, Response
from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api import audit, booking
from api.auth import AdminOnly, SignedIn, StaffOnly
from api.credentials import issue_link
from api.idempotency import IdempotencyKey, fingerprint, once
from api.passwords import hash_password, verify_password
from api.process import Process, ProcessDep
from api.schemas import LinkView, Me, MyChange, NewUser, Page, UserChange, UserView
from api.text_types import After, Limit, PlainText
from core.clock import utc_now
from core.errors import BadRequest, Conflict, Forbidden, NotFound
from core.ids import Kind, new_id
from core.states import LIVE_JOB, WAITING_JOB, LeaseState
from core.tables import Job, Lab, Lease, LinkKind, Membership, Role, Token, User

router = APIRouter(prefix="/v1", tags=["people"])

LINK_LIFETIME = timedelta(minutes=10)


@router.get("/me", summary="Who am I?")
def get_me(person: SignedIn, process: ProcessDep) -> Me:
    """You, your labs, your jobs in numbers, and your present or next lease."""
    with process.read() as session:
        user = session.get(User, person.id)
        labs = session.scalars(
            select(Lab.name)
            .join(Membership, Membership.lab_id == Lab.id)
            .where(Membership.user_id == person.id)
            .order_by(Lab.name)
        ).all()
        counts: dict[str, int] = {
            state: count
            for state, count in session.execute(
                select(Job.state, func.count())
                .where(Job.user_id == person.id, Job.state.in_(LIVE_JOB + WAITING_JOB))
                .group_by(Job.state)
            )
        }
        lease = session.execute(
            booking.leases_with_context()
            .where(
                Lease.user_id == person.id,
                Lease.state.in_((LeaseState.ACTIVE, LeaseState.BOOKED)),
            )
            .order_by(Lease.hold_start)
            .limit(1)
        ).first()
    return Me(
        user=UserView.model_validate(user),
        labs=list(labs),
        queued=sum(counts.get(state, 0) for state in WAITING_JOB),
        running=sum(counts.get(state, 0) for state in LIVE_JOB),
        lease=booking.lease_view(*lease) if lease else None,
    )


@router.patch("/me", summary="Change my zone or password")
def change_me(change: MyChange, person: SignedIn, process: ProcessDep) -> UserView:
    """A new password needs the present one, where there is one."""
    values: dict[str, object] = {}
    if change.zone is not None:
        values["zone"] = _checked_zone(change.zone)
    if change.password is not None:
        with process.read() as session:
            user = session.get(User, person.id)
        assert user is not None
        if user.password_hash is not None:
            process.limits.count_login(person.name, "change of password")
            if not verify_password(change.current_password or "", user.password_hash):
                raise Forbidden("current_password is wrong.", param="current_password")
        values["password_hash"] = hash_password(change.password)
    now = utc_now()
    with process.write() as (session, _):
        if values:
            session.execute(update(User).where(User.id == person.id).values(**values))
        if change.password is not None:
            audit.record(session, person.id, "user.password", person.id, now=now)
        return UserView.model_validate(session.get(User, person.id))


@router.post("/me/login-link", status_code=201, summary="A link that signs me in elsewhere")
def create_login_link(person: SignedIn, process: ProcessDep) -> LinkView:
    """It works once and for ten minutes."""
    with process.write() as (session, _):
        return _login_link(session, process, user_id=person.id, actor=person.id)


@router.get("/users", summary="List people")
def list_users(
    person: StaffOnly, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[UserView]:
    """Everybody who has an account, the newest first."""
    query = select(User).order_by(User.id.desc()).limit(limit + 1)
    if after:
        query = query.where(User.id < after)
    with process.read() as session:
        rows = session.scalars(query).all()
    return Page[UserView](
        data=[UserView.model_validate(row) for row in rows[:limit]], has_more=len(rows) > limit
    )


@router.post("/users", status_code=201, summary="Add a person")
def create_user(
    wanted: NewUser, person: AdminOnly, process: ProcessDep, key: IdempotencyKey = None
) -> UserView:
    """Without a password they sign in by a login link."""
    password_hash = hash_password(wanted.password) if wanted.password else None
    zone = _checked_zone(wanted.zone)
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
                disabled=False,
                created_at=now,
            )
            try:
                with session.begin_nested():
                    session.add(user)
            except IntegrityError as error:
                raise Conflict(
                    f"name: {wanted.name} is taken. Choose another name.",
                    code="name_taken",
                    param="name",
                ) from error
            audit.record(
                session, person.id, "user.add", user.id, now=now, name=user.name, role=user.role
            )
            return user.id

        user_id = once(
            session, user_id=person.id, key=key, body_sha256=body_sha256, now=now, make=make
        )
        return UserView.model_validate(session.get(User, user_id))


@router.get("/users/{user_id}", summary="One person")
def get_user(user_id: PlainText, person: StaffOnly, process: ProcessDep) -> UserView:
    """A person by id or name."""
    with process.read() as session:
        return UserView.model_validate(_find(session, user_id))


@router.patch("/users/{user_id}", summary="Change role, password or access")
def change_user(
    user_id: PlainText, change: UserChange, person: AdminOnly, process: ProcessDep
) -> UserView:
    """Disabling a person ends their sessions and tokens at once; their jobs stay."""
    password_hash = hash_password(change.password) if change.password else None
    now = utc_now()
    with process.write() as (session, _):
        # Administrators are locked together: two who remove each other leave one.
        session.execute(
            select(User.id)
            .where(User.role == Role.ADMIN)
            .order_by(User.id)
            .with_for_update(key_share=True)
        ).all()
        user = _find(session, user_id)
        loses = change.disabled is True or change.role not in (None, Role.ADMIN)
        if user.role is Role.ADMIN and loses:
            _require_other_admin(session, user)
        if change.role is not None:
            user.role = change.role
        if change.disabled is not None:
            user.disabled = change.disabled
        if password_hash is not None:
            user.password_hash = password_hash
        if change.disabled or password_hash is not None:
            session.execute(
                update(Token)
                .where(Token.user_id == user.id, Token.revoked_at.is_(None))
                .values(revoked_at=now)
            )
        audit.record(
            session,
            person.id,
            "user.change",
            user.id,
            now=now,
            role=str(user.role),
            disabled=user.disabled,
            new_password=password_hash is not None,
        )
        session.flush()
        return UserView.model_validate(user)


@router.delete("/users/{user_id}", status_code=204, summary="Disable a person")
def disable_user(user_id: PlainText, person: AdminOnly, process: ProcessDep) -> Response:
    """Their name, jobs and history stay; they can't sign in any more."""
    change_user(user_id, UserChange(disabled=True), person, process)
    return Response(status_code=204)


@router.post("/users/{user_id}/login-link", status_code=201, summary="A login link for a person")
def create_link_for_user(user_id: PlainText, person: AdminOnly, process: ProcessDep) -> LinkView:
    """For somebody without a password, or who has forgotten it. It works once, for ten minutes."""
    with process.write() as (session, _):
        user = _find(session, user_id)
        return _login_link(session, process, user_id=user.id, actor=person.id)


def _find(session: Session, user_id: str) -> User:
    user = session.scalars(
        select(User).where((User.id == user_id) | (User.name == user_id))
    ).one_or_none()
    if user is None:
        raise NotFound(f"There is no person {user_id!r}.")
    return user


def _login_link(session: Session, process: Process, *, user_id: str, actor: str) -> LinkView:
    now = utc_now()
    link, secret = issue_link(
        session, kind=LinkKind.LOGIN, now=now, lifetime=LINK_LIFETIME, user_id=user_id
    )
    audit.record(session, actor, "user.login_link", user_id, now=now)
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
        raise Conflict(f"{user.name} is the last administrator. Make another one first.")


def _checked_zone(zone: str) -> str:
    try:
        return ZoneInfo(zone).key
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadRequest(
            f"zone: {zone!r} is no time zone; write it like Europe/Berlin or UTC.", param="zone"
        ) from error
