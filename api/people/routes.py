"""/v1/me, /v1/users: people."""

from fastapi import APIRouter, Response

from api.people import users
from api.people.schemas import LinkView, Me, Move, MoveView, MyChange, NewUser, UserChange, UserView
from api.web.auth import AdminOnly, SignedIn, StaffOnly
from api.web.idempotency import IdempotencyKey, keyed
from api.web.passwords import hash_password, verify_password
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.scopes import MissingScope
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import Forbidden
from core.tables.kinds import Scope
from core.tables.people import User

router = APIRouter(prefix="/v1", tags=["people"])


@router.get("/me", summary="Who am I?")
def get_me(person: SignedIn, process: ProcessDep) -> Me:
    """Return your account, labs, numbers of queued and running jobs, and active or next lease."""
    with process.read() as session:
        return users.show_me(session, person)


@router.patch("/me", summary="Change my time zone, columns or password")
def change_me(change: MyChange, person: SignedIn, process: ProcessDep) -> UserView:
    """Change your zone, the columns of your lists of jobs, or your password. A new password
    requires the present one, if there is one.

    A new password signs you out everywhere else: every other session and every other API token
    ends.
    """
    values: dict[str, object] = {}
    if change.zone is not None:
        values["zone"] = users.checked_zone(change.zone)
    if change.job_columns is not None:
        values["job_columns"] = change.job_columns
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
    return process.transact(users.change_own, change, person, values=values, now=now)


@router.post("/me/login-link", status_code=201, summary="Create a login link for myself")
def create_login_link(person: SignedIn, process: ProcessDep) -> LinkView:
    """Make a login link for yourself, which works once, for ten minutes.

    A link made with an API token ends with that token, and so does the session that it opens.
    """
    return process.transact(users.login_link_to_oneself, person, process)


@router.get("/users", summary="List people")
def list_users(
    person: StaffOnly, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[UserView]:
    """Return all people who have an account, newest first."""
    with process.read() as session:
        return users.list_users(session, limit=limit, after=after)


@router.post("/users", status_code=201, summary="Add a person")
def create_user(
    wanted: NewUser, person: AdminOnly, process: ProcessDep, key: IdempotencyKey = None
) -> UserView:
    """Add a person. Without a password the person signs in by a login link."""
    password_hash = hash_password(wanted.password) if wanted.password else None
    zone = users.checked_zone(wanted.zone)
    now = utc_now()
    sent = keyed(person, key, "/v1/users", wanted.model_dump_json().encode())
    return process.transact(
        users.create_user,
        wanted,
        person,
        password_hash=password_hash,
        zone=zone,
        now=now,
        sent=sent,
    )


@router.get("/users/{user_id}", summary="Get a person")
def get_user(user_id: PlainText, person: StaffOnly, process: ProcessDep) -> UserView:
    """Return a person by id or name."""
    with process.read() as session:
        return users.show_user(session, user_id)


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
    return process.transact(
        users.change_user, user_id, change, person, now=now, password_hash=password_hash
    )


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
    return process.transact(users.login_link_to, user_id, person, process)


@router.post(
    "/users/{user_id}/password-link", status_code=201, summary="Create a password link for a person"
)
def create_password_link(user_id: PlainText, person: AdminOnly, process: ProcessDep) -> LinkView:
    """Make a link to set a password, for a person who has forgotten theirs or never had one.

    The link works once, for a day.
    """
    return process.transact(users.password_link_to, user_id, person, process)


@router.post("/users/{user_id}/move", summary="Move a person from one lab to another")
def move_user(user_id: PlainText, move: Move, person: AdminOnly, process: ProcessDep) -> MoveView:
    """Move a person from one lab to another. Booked leases move along.

    Past and active leases stay with the old lab, and so does their use.
    """
    now = utc_now()
    return process.transact(users.move_user, user_id, move, person, now=now)
