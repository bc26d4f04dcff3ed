"""/v1/bands: bands and windows of the rules, for a calendar to draw."""

from typing import Annotated

from fastapi import APIRouter, Query

from api.policies import bands
from api.policies.schemas import BandsView
from api.web.auth import SignedIn
from api.web.process import ProcessDep
from api.web.schemas import AskedMoment, Page

router = APIRouter(prefix="/v1/bands", tags=["policies"])

MAX_HOURS = 24 * 31


@router.get("", summary="List bands and windows of hours")
def list_bands(
    person: SignedIn,
    process: ProcessDep,
    start: AskedMoment,
    hours: Annotated[int, Query(ge=1, le=MAX_HOURS)] = 168,
) -> Page[BandsView]:
    """List nights and other bands, and windows, that touch these hours, for each group of nodes
    that one policy treats alike for you."""
    with process.read() as session:
        return bands.bands_of(session, person, start, hours)
