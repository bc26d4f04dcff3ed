"""Attempts to sign in: their addresses, and the logs and counts of those that failed."""

from collections.abc import Iterator
from datetime import timedelta

import structlog
from fastapi import Depends, Request
from sqlalchemy import select

from api.web import audit
from api.web.audit import Act
from api.web.process import Process, ProcessDep
from api.web.rate_limits import RateLimited
from core.base.clock import utc_now
from core.base.errors import Forbidden, Unauthenticated
from core.tables.people import User

BURST = timedelta(hours=1)
MANY_OF_A_NAME = 5  # failures within a burst: a guesser, or a person who can't remember
MANY_OF_AN_ADDRESS = 20  # a classroom behind one address mistypes now and then
# Nothing was guessed, and any site can send a browser here: no reason to hold an address.
NO_GUESSES = frozenset({"cross_site", "oidc_state", "oidc_over"})

log = structlog.get_logger()


def address_of(request: Request) -> str:
    """Return the client address of a request; `unknown` if there is none."""
    return request.client.host if request.client else "unknown"


def watched(request: Request, process: ProcessDep) -> Iterator[None]:
    """Count and log a sign-in that fails, and record the first of many in the audit log.

    A handler that gets a user name puts it into `request.state.name`.
    """
    try:
        yield
    except RateLimited as refusal:
        _log("sign_in_refused", request, refusal.code)
        raise
    except (Unauthenticated, Forbidden) as failure:
        _log("sign_in_failed", request, failure.code)
        if failure.code not in NO_GUESSES:
            process.limits.count_failed_sign_in(address_of(request), _name(request))
        _record_burst(process, request)
        raise


Watched = Depends(watched)


def _log(event: str, request: Request, why: str) -> None:
    log.warning(event, name=_name(request), address=address_of(request), why=why)


def _name(request: Request) -> str | None:
    name = getattr(request.state, "name", None)
    return name[:64] if isinstance(name, str) else None


def _record_burst(process: Process, request: Request) -> None:
    """Record, once an hour each, a person and an address with too many failed sign-ins."""
    name, address, now = _name(request), address_of(request), utc_now()
    with process.read() as session:
        user_id = session.scalar(select(User.id).where(User.name == name))
    tries = [(address, MANY_OF_AN_ADDRESS)]
    if user_id is not None:
        tries.append((user_id, MANY_OF_A_NAME))
    for subject, many in tries:
        if not process.limits.are_many_failures(subject, many, within=BURST):
            continue
        details = {"failures": many, "name": name, "address": address}
        act = Act("api", "sign_in.failures", subject, details)
        process.record(audit.record_once, [act], since=now - BURST, now=now)
