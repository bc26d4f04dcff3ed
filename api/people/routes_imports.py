"""/v1/users/import: a whole course at once, from a list of people as CSV."""

from fastapi import APIRouter
from pydantic import Field

from api.people import imports, letters
from api.people.people_import import read_people
from api.people.schemas import ImportView
from api.web.auth import AdminOnly
from api.web.process import ProcessDep
from api.web.schemas import Body
from core.base.clock import utc_now

router = APIRouter(prefix="/v1", tags=["people"])


class PeopleList(Body):
    """A list of people, as CSV."""

    csv: str = Field(max_length=900_000)
    """Lines of CSV. The first one names the columns: `name`, and `email`, `lab`, `zone`, `role`;
    every other column is an attribute of that name."""
    dry_run: bool = False
    """Check the list and return the changes that it would make, without making them."""
    links: bool = False
    """Make a link for each new person, with which to set a password."""
    mail: bool = False
    """Mail each new person with an address a link to set a password, which works for 14 days."""


@router.post("/users/import", summary="Import a list of people")
def import_people(wanted: PeopleList, person: AdminOnly, process: ProcessDep) -> ImportView:
    """Add new people and change fields that differ. A list with a mistake changes nothing.

    Nothing is removed, and attributes that the list does not name stay as they are. The same list
    again changes nothing.
    """
    if wanted.mail:
        letters.require_mail(process)
    people, mistakes = read_people(wanted.csv)
    imports.refuse(mistakes)
    now = utc_now()
    if wanted.dry_run:
        with process.read() as session:
            return imports.preview(session, people)
    return process.transact(
        imports.write, people, person, process, links=wanted.links, mail=wanted.mail, now=now
    )
