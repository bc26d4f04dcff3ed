"""Accounts of people whom an OpenID provider vouches for, and roles and labs from their groups.

An account is found by issuer and subject. A mail address only counts the first time: it may be
given to somebody else later. Until that first time nobody has proven to own the account's address:
a person who was invited by it, or who invited themselves by somebody else's address, is signed out
for good when the owner of the address signs in. Deny by default: a person who was not invited, and
whose address is of no allowed domain, gets no account.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from zoneinfo import available_timezones

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session
from starlette.requests import Request

from api.people.users import add_user, find_user
from api.sign_in.invites import use_invite
from api.sign_in.oidc_provider import Claims, Trip
from api.sign_in.schemas import TokenMade
from api.sign_in.sessions import start_session
from api.web import audit
from api.web.bells import Bells
from api.web.credentials import issue_link, sign_out_everywhere, use_link
from api.web.identity import RANK, Person
from core.base.clock import utc_now
from core.base.errors import Forbidden, Unauthenticated
from core.base.ids import IdKind, new_id
from core.process.settings import ApiSettings
from core.tables.kinds import LinkKind, Role
from core.tables.leases import CalendarFeed
from core.tables.notices import Webhook
from core.tables.people import Identity, Invite, Lab, Membership, User

MAX_NAME = 32


def account_of(session: Session, claims: Claims, settings: ApiSettings, *, now: datetime) -> User:
    """Return the account of these claims, linked or made now if need be.

    Raises Forbidden if there is none to link or make, Unauthenticated if it is disabled.
    """
    identity = session.get(Identity, (claims.issuer, claims.subject))
    if identity is not None:
        user = session.get_one(User, identity.user_id)
    else:
        user = _first_time(session, claims, settings, now=now)
        identity = _link(session, claims, user, settings.oidc_title, now=now)
    if user.disabled:
        raise Unauthenticated("This account is disabled. Ask an administrator.", code="disabled")
    identity.last_used_at = now
    follow_groups(session, user, claims, settings, now=now)
    return user


def follow_groups(
    session: Session, user: User, claims: Claims, settings: ApiSettings, *, now: datetime
) -> None:
    """Set the role that the person's groups give, if groups give roles, and add them to labs.

    Labs are never left this way. The last administrator keeps the role, whatever the groups say.
    """
    if settings.oidc_roles:
        role = role_of(claims.groups, settings.oidc_roles)
        if role is not user.role and not (user.role is Role.ADMIN and _is_last(session, user)):
            audit.record(
                session, user.id, "user.role", user.id, now=now, role=role, before=user.role
            )
            user.role = role
    names = [lab for group, lab in settings.oidc_labs.items() if group in claims.groups]
    for lab in session.scalars(select(Lab).where(Lab.name.in_(names)).order_by(Lab.id)):
        if session.get(Membership, (lab.id, user.id)) is None:
            session.add(Membership(lab_id=lab.id, user_id=user.id))
            audit.record(session, user.id, "lab.join", lab.id, now=now, name=lab.name)
    session.flush()


def role_of(groups: frozenset[str], roles: Mapping[str, str]) -> Role:
    """Return the highest role of any of the groups; without one, the plain user's."""
    given = [Role(role) for group, role in roles.items() if group in groups]
    return max(given, key=RANK.__getitem__, default=Role.USER)


def name_from(wish: str, taken: Sequence[str]) -> str:
    """Return a free user name that is like `wish`: `Ann.Lee@x` gives `ann.lee`, or `ann.lee2`."""
    plain = re.sub(r"[^a-z0-9_.-]+", "-", wish.partition("@")[0].lower()).strip("-._")
    base = plain if plain[:1].isalpha() else f"u{plain}"
    name, number = base[:MAX_NAME], 1
    while name in taken:
        number += 1
        name = f"{base[: MAX_NAME - len(str(number))]}{number}"
    return name


def _first_time(session: Session, claims: Claims, settings: ApiSettings, *, now: datetime) -> User:
    """Return the account of the verified address, or make one by invitation or allowed domain.

    Raises Forbidden if the address is not verified, or neither invited nor of an allowed domain.
    """
    if claims.email is None:
        raise Forbidden(
            f"{settings.oidc_title} has not verified your mail address, so your account here "
            "cannot be determined. Verify the address there, or sign in with a password or a "
            "login link.",
            code="email_unverified",
        )
    user = session.scalars(
        select(User).where(User.email == claims.email).with_for_update(key_share=True)
    ).one_or_none()
    if user is not None:
        return user
    invite = session.scalars(
        select(Invite)
        .where(
            Invite.email == claims.email,
            Invite.used_at.is_(None),
            Invite.revoked_at.is_(None),
            Invite.expires_at > now,
        )
        .order_by(Invite.id.desc())
        .limit(1)
    ).one_or_none()
    domain = claims.email.rpartition("@")[2]
    if invite is None and domain not in [one.lower() for one in settings.oidc_domains]:
        raise Forbidden(
            f"No account here has the address {claims.email}. Ask an administrator or the "
            "lead of your lab to invite this address, then sign in again.",
            code="not_invited",
        )
    user = User(
        id=new_id(IdKind.USER),
        name=_free_name(session, claims),
        role=Role.USER,
        password_hash=None,
        zone=claims.zone if claims.zone in available_timezones() else "UTC",
        email=claims.email,
        attributes={},
        disabled=False,
        created_at=now,
    )
    if invite is not None:
        use_invite(session, invite, user, now=now)
    else:
        add_user(session, user)
    audit.record(
        session, user.id, "user.add", user.id, now=now, name=user.name, by=settings.oidc_title
    )
    return user


def _link(
    session: Session, claims: Claims, user: User, provider: str, *, now: datetime
) -> Identity:
    """Link this identity to this person. Raises Forbidden if another one is linked already."""
    linked = session.scalars(
        select(Identity).where(Identity.user_id == user.id, Identity.issuer == claims.issuer)
    ).first()
    if linked is not None and linked.subject != claims.subject:
        raise Forbidden(
            f"The account of {claims.email} belongs to another identity at {provider}. If that was "
            f"you, ask an administrator: trainyard admin unlink {user.name}",
            code="linked_to_another",
        )
    if linked is not None:  # by a request that came at the same time
        return linked
    identity = Identity(
        issuer=claims.issuer,
        subject=claims.subject,
        user_id=user.id,
        email=claims.email,
        created_at=now,
        last_used_at=now,
    )
    session.add(identity)
    session.flush()
    had_password = user.password_hash is not None
    _shut_out_others(session, user, now=now)
    audit.record(
        session,
        user.id,
        "user.link",
        user.id,
        now=now,
        issuer=claims.issuer,
        identity=claims.subject,
        email=claims.email,
        dropped_password=had_password,
    )
    return identity


def _shut_out_others(session: Session, user: User, *, now: datetime) -> None:
    """End every other way into the account, and its webhook and calendar feeds."""
    user.password_hash = None
    sign_out_everywhere(session, user.id, now=now)
    session.execute(delete(Webhook).where(Webhook.user_id == user.id))
    session.execute(
        update(CalendarFeed)
        .where(CalendarFeed.user_id == user.id, CalendarFeed.revoked_at.is_(None))
        .values(revoked_at=now)
    )


def _free_name(session: Session, claims: Claims) -> str:
    wish = claims.name or claims.email or ""
    base = name_from(wish, ())
    like = select(User.name).where(User.name.startswith(base[: MAX_NAME - 4], autoescape=True))
    return name_from(wish, session.scalars(like).all())


def _is_last(session: Session, user: User) -> bool:
    session.execute(  # locked together: if two lose the role at once, one of them keeps it
        select(User.id)
        .where(User.role == Role.ADMIN)
        .order_by(User.id)
        .with_for_update(key_share=True)
    ).all()
    others = session.scalar(
        select(func.count())
        .select_from(User)
        .where(User.role == Role.ADMIN, User.disabled.is_(False), User.id != user.id)
    )
    return not others


def unlink(session: Session, _: Bells, user_id: str, person: Person, *, now: datetime) -> None:
    """Delete a person's identities at the provider. Raises NotFound."""
    user = find_user(session, user_id)
    gone = session.scalars(
        delete(Identity).where(Identity.user_id == user.id).returning(Identity.subject)
    ).all()
    if gone:
        audit.record(session, person.id, "user.unlink", user.id, now=now, subjects=sorted(gone))


def begin_trip(session: Session, _: Bells, *, lifetime: timedelta) -> str:
    """Insert a trip to the provider; return its secret."""
    return issue_link(session, kind=LinkKind.OIDC, now=utc_now(), lifetime=lifetime)[1]


def end_trip(session: Session, _: Bells, trip: Trip) -> None:
    """Mark a trip as used: of two requests that come back from it, one succeeds.

    Raises Unauthenticated if the trip is used up or took too long.
    """
    use_link(session, trip.secret, LinkKind.OIDC, now=utc_now())


def sign_in(
    session: Session, _: Bells, claims: Claims, request: Request, settings: ApiSettings
) -> TokenMade:
    """Start a session of the account of these claims. Raises as `account_of`."""
    now = utc_now()
    user = account_of(session, claims, settings, now=now)
    return start_session(session, user, request, now=now)
