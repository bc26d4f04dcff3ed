"""/v1/admin/read-only: hold the platform still, for a backup or a move."""

from datetime import datetime, timedelta

from fastapi import APIRouter, Response
from pydantic import Field

from api.web import audit
from api.web.auth import AdminOnly, StaffOnly
from api.web.process import ProcessDep
from api.web.schemas import Body, Moment, View
from core.base.clock import utc_now
from core.process import read_only

router = APIRouter(prefix="/v1/admin", tags=["administration"])


class ReadOnlyWish(Body):
    """Longest duration in minutes, and the sentence that people read meanwhile."""

    minutes: int = Field(default=30, ge=1, le=24 * 60)
    reason: str = Field(default="It is being backed up.", min_length=1, max_length=200)


class ReadOnlyView(View):
    """State of the platform: read-only or not, with the reason and the latest end."""

    read_only: bool
    reason: str
    until: Moment | None


@router.get("/read-only", summary="Get the read-only state")
def get_read_only(person: StaffOnly, process: ProcessDep) -> ReadOnlyView:
    """Return whether the platform is read-only, the reason, and the latest end."""
    with process.read() as session:
        return _view(read_only.state(session, now=utc_now()))


@router.post("/read-only", summary="Begin read-only mode")
def begin_read_only(wish: ReadOnlyWish, person: AdminOnly, process: ProcessDep) -> ReadOnlyView:
    """Make the platform read-only: every change answers 503 with the reason. Running jobs continue;
    nodes send their news later."""
    now = utc_now()
    # Not process.transact(): that is what refuses while the platform is read-only.
    with process.database.write() as session:
        until = read_only.begin(
            session, wish.reason, now=now, lasts=timedelta(minutes=wish.minutes)
        )
        audit.record(
            session, person.id, "platform.read_only", "platform", now=now, minutes=wish.minutes
        )
    return _view((wish.reason, until))


@router.delete("/read-only", status_code=204, summary="End read-only mode")
def end_read_only(person: AdminOnly, process: ProcessDep) -> Response:
    """End the read-only state at once. Nodes then send what they have kept."""
    with process.database.write() as session:
        read_only.end(session)
        audit.record(session, person.id, "platform.read_write", "platform", now=utc_now())
    return Response(status_code=204)


def _view(state: tuple[str, datetime] | None) -> ReadOnlyView:
    reason, until = state if state else ("", None)
    return ReadOnlyView(read_only=state is not None, reason=reason, until=until)
